"""A client as it should be: it reads a response to its end, from whichever node answers, and resumes when cut."""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException

from tests.crash.client import PATIENCE, Stream
from tests.nodes.crew import Crew


class Reader(threading.Thread):
    """Keeps every frame it saw; `resumed` counts how often it had to ask again."""

    def __init__(self, crew: Crew, response_id: str, stream: Stream | None = None, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.id = response_id
        self.frames: list[bytes] = list(stream.frames) if stream is not None else []
        self.resumed = 0
        self.whole = False
        self._crew = crew
        self._stream = stream
        self._reading: tuple[Stream, int] | None = None  # and how many of its frames are counted already
        self._random = random.Random(seed)
        self.start()

    def run(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.whole and time.monotonic() < until:
            try:
                stream = self._stream or self._open()
            except (OSError, HTTPException):
                time.sleep(0.05)
                continue
            self._stream = None
            if stream.status == 200:
                seen = len(stream.frames)
                self._reading = stream, seen
                stream.read_all()
                self._reading = None
                self.frames += stream.frames[seen:]
                self.whole = stream.whole
            stream.close()
            self.resumed += not self.whole

    @property
    def count(self) -> int:
        """How many frames it has seen, about."""
        reading = self._reading
        return len(self.frames) + (len(reading[0].frames) - reading[1] if reading is not None else 0)

    def wait_count(self, count: int) -> None:
        until = time.monotonic() + PATIENCE
        while self.count < count:
            assert time.monotonic() < until and not self.whole, f"{self.id}: {self.frames[-1:]}"
            time.sleep(0.01)

    def wait(self) -> None:
        self.join(PATIENCE)
        assert self.whole, f"{self.id} came to no end: {self.frames[-1:]}"

    def _open(self) -> Stream:
        node = self._random.choice(self._crew.nodes)
        return node.client.follow(self.id, after=len(self.frames) - 1 if self.frames else None)
