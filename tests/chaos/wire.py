"""Requests to whichever node answers: the bytes of every frame are kept, and what is cut is taken up elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp

from tests.chaos.fleet import Fleet
from tests.chaos.record import Turn
from tests.support.upstream import Json

DONE = b"data: [DONE]\n\n"
# Idle streams get a comment every second, so a connection that is silent for so long is dead.
SILENCE = 4.0
BROKEN = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


NUMBER = re.compile(rb'"sequence_number":(\d+)')


class Answer(NamedTuple):
    status: int
    body: Json


class Wire:
    """Asks a random node. `resumed` counts how often somebody read on in a stream, on a connection of its own."""

    def __init__(self, fleet: Fleet, choose: random.Random) -> None:
        self._fleet = fleet
        self._choose = choose
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=SILENCE)
        # Connections are never used again: a node that was killed leaves dead ones behind. The server is not told, just
        # as SDKs do not, and so it sees when an answer came too late for whoever asked.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Connection": "keep-alive"}
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)
        self.resumed = 0
        self.seen = 0  # events
        self.losses = 0  # how often an event was not the one that had to come

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, method: str, path: str, body: Json | None = None, **headers: str) -> Answer:
        """Until a node has answered. What is asked here may be asked twice."""
        while True:
            if (answer := await self.ask_once(method, path, body, headers)) is not None:
                return answer

    async def ask_once(
        self, method: str, path: str, body: Json | None, headers: dict[str, str], turn: Turn | None = None
    ) -> Answer | None:
        """None when there was no answer, or none but that the server is not there for us now."""
        try:
            async with self._open(method, path, body, headers, turn) as response:
                raw = await response.read()
            if response.status != 503:
                return Answer(response.status, json.loads(raw))
        except BROKEN:
            pass
        await self._breathe()
        return None

    async def follow(self, turn: Turn) -> None:
        """Read a response to its end, from where the user is, over as many connections as it takes."""
        while not turn.over:
            cursor = f"&starting_after={len(turn.frames) - 1}" if turn.frames else ""
            try:
                async with self._open("GET", f"/responses/{turn.response_id}?stream=true{cursor}") as response:
                    if response.status == 200:
                        self.resumed += 1
                        await self.read(response, turn)
                    elif response.status != 503:
                        raise RuntimeError(f"{turn.name}: {response.status} {await response.text()}")
            except BROKEN:
                pass
            if not turn.over:
                await self._breathe()

    async def read(self, response: aiohttp.ClientResponse, turn: Turn) -> None:
        """Keep every frame; the turn is over with [DONE]."""
        rest = b""
        async for data in response.content.iter_any():
            *frames, rest = (rest + data).split(b"\n\n")
            for frame in frames:
                if frame + b"\n\n" == DONE:
                    turn.over = True
                elif not frame.startswith(b":"):
                    self.losses += number_of(frame) != len(turn.frames)
                    turn.frames.append(frame + b"\n\n")
                    self.seen += bool(turn.name)  # a replay is nobody's

    async def stream(self, body: Json, turn: Turn, key: str) -> Answer | None:
        """Ask for a response and read it as long as the connection lasts; an answer that is no stream is returned."""
        try:
            async with self._open("POST", "/responses", body, {"Idempotency-Key": key}, turn) as response:
                if response.content_type != "text/event-stream":
                    return Answer(response.status, json.loads(await response.read()))
                await self.read(response, turn)
        except BROKEN:
            pass
        return None

    async def replay(self, response_id: str) -> list[bytes]:
        """Everything from the first event on, in one piece."""
        while True:
            turn = Turn("", "", "", None, response_id)
            try:
                async with self._open("GET", f"/responses/{response_id}?stream=true") as response:
                    if response.status == 200:
                        await self.read(response, turn)
            except BROKEN:
                pass
            if turn.over:
                return turn.frames
            await self._breathe()

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        turn: Turn | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request to some node; `turn` keeps what came of it."""
        node = self._choose.choice(self._fleet.nodes)
        began, outcome = time.time(), "no answer"
        try:
            async with self._session.request(method, node.url + path, json=body, headers=headers) as response:
                outcome = f"{response.status}"
                yield response
                outcome = f"{response.status}, whole"
        except BROKEN as error:
            outcome += f", {type(error).__name__}: {error}"
            raise
        finally:
            if turn is not None:
                turn.tries.append(f"{began:.3f} to {time.time():.3f} {node.name} {headers}: {outcome}")

    async def _breathe(self) -> None:
        await asyncio.sleep(self._choose.uniform(0.02, 0.2))


def number_of(frame: bytes) -> int:
    found = NUMBER.search(frame)
    return int(found[1]) if found is not None else -1
