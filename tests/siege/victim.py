"""The victim of a siege: a stream of one token in 50 ms, and small requests, of an owner who does nothing wrong."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Self

TOKEN_SECONDS = 0.05


class Victim:
    """Reads a stream and sends small requests, in two threads, until it is left."""

    def __init__(self, port: int, key: str, model: str) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._model = model
        self._over = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read, self._ask)]
        self.begun = threading.Event()
        self.longest_delay = 0.0  # seconds beyond the time between two tokens
        self.tokens = 0
        self.asked = 0
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        assert self.begun.wait(20), "the victim's stream did not begin"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(70)

    def _read(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        body = f'{{"model": "{self._model}", "input": "Hi", "stream": true}}'
        try:
            connection.request("POST", "/v1/responses", body, self._headers)
            answer = connection.getresponse()
            last = time.monotonic()
            while not self._over.is_set():
                line = answer.readline()
                if not line:
                    self.failed.append("the stream ended")
                    return
                if not line.startswith(b"data:"):
                    continue
                now = time.monotonic()
                if self.begun.is_set():
                    self.longest_delay = max(self.longest_delay, now - last - TOKEN_SECONDS)
                elif b"output_text.delta" in line:
                    self.begun.set()
                self.tokens += 1
                last = now
        except (OSError, HTTPException) as error:
            self.failed.append(f"stream: {error!r}")
        finally:
            with contextlib.suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _ask(self) -> None:
        while not self._over.wait(0.3):
            connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
            try:
                connection.request("POST", "/v1/responses", '{"model": "steady/any", "input": "Hi"}', self._headers)
                status = connection.getresponse().status
                self.asked += 1
                if status != 200:
                    self.failed.append(f"a request: {status}")
            except (OSError, HTTPException) as error:
                self.failed.append(f"a request: {error!r}")
            finally:
                connection.close()
