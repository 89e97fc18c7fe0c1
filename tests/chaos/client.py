"""Asynchronous requests to any node: the bytes of every frame are kept, and a cut stream is resumed elsewhere."""

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

from tests.chaos.cluster import ChaosCluster
from tests.chaos.counts import Turn
from tests.support.http_client import DONE, Json

# Idle streams get a comment every second, so a connection without bytes for so long is dead.
IDLE_SECONDS = 4.0
CONNECTION_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
NUMBER = re.compile(rb'"sequence_number":(\d+)')


class JsonAnswer(NamedTuple):
    status: int
    body: Json


class ClusterClient:
    """Sends each request to a random node. `resumed` counts the connections that resumed a stream."""

    def __init__(self, cluster: ChaosCluster, choose: random.Random) -> None:
        self._cluster = cluster
        self._choose = choose
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=IDLE_SECONDS)
        # Connections are never reused: a node that was killed leaves dead ones behind. The server is not informed, as
        # it is not by SDKs, and so it notices when an answer comes too late for its client.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Connection": "keep-alive"}
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)
        self.resumed = 0
        self.seen = 0  # events
        self.losses = 0  # events whose number was not the next one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def request(self, method: str, path: str, body: Json | None = None, **headers: str) -> JsonAnswer:
        """Repeat a request until a node has answered; for requests that may be repeated."""
        while True:
            if (answer := await self.request_once(method, path, body, headers)) is not None:
                return answer

    async def request_once(
        self, method: str, path: str, body: Json | None, headers: dict[str, str], turn: Turn | None = None
    ) -> JsonAnswer | None:
        """Return None where there was no answer, or only that the server is unavailable."""
        try:
            async with self._open(method, path, body, headers, turn) as response:
                raw = await response.read()
            if response.status != 503:
                return JsonAnswer(response.status, json.loads(raw))
        except CONNECTION_ERRORS:
            pass
        await self._pause()
        return None

    async def follow(self, turn: Turn) -> None:
        """Read a response to its end from the user's position, over as many connections as it takes."""
        while not turn.ended:
            cursor = f"&starting_after={len(turn.frames) - 1}" if turn.frames else ""
            try:
                async with self._open("GET", f"/responses/{turn.response_id}?stream=true{cursor}") as response:
                    if response.status == 200:
                        self.resumed += 1
                        await self.read(response, turn)
                    elif response.status != 503:
                        raise RuntimeError(f"{turn.name}: {response.status} {await response.text()}")
            except CONNECTION_ERRORS:
                pass
            if not turn.ended:
                await self._pause()

    async def read(self, response: aiohttp.ClientResponse, turn: Turn) -> None:
        """Keep every frame; the turn has ended with [DONE]."""
        rest = b""
        async for data in response.content.iter_any():
            *frames, rest = (rest + data).split(b"\n\n")
            for frame in frames:
                if frame + b"\n\n" == DONE:
                    turn.ended = True
                elif not frame.startswith(b":"):
                    self.losses += number_of(frame) != len(turn.frames)
                    turn.frames.append(frame + b"\n\n")
                    self.seen += bool(turn.name)  # a replay has no name and no user

    async def stream(self, body: Json, turn: Turn, key: str) -> JsonAnswer | None:
        """Create a response and read it as long as the connection lasts; return an answer that is not a stream."""
        try:
            async with self._open("POST", "/responses", body, {"Idempotency-Key": key}, turn) as response:
                if response.content_type != "text/event-stream":
                    return JsonAnswer(response.status, json.loads(await response.read()))
                await self.read(response, turn)
        except CONNECTION_ERRORS:
            pass
        return None

    async def replay(self, response_id: str) -> list[bytes]:
        """Return all frames from the first event on, read over one connection."""
        while True:
            turn = Turn("", "", "", None, response_id)
            try:
                async with self._open("GET", f"/responses/{response_id}?stream=true") as response:
                    if response.status == 200:
                        await self.read(response, turn)
            except CONNECTION_ERRORS:
                pass
            if turn.ended:
                return turn.frames
            await self._pause()

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        turn: Turn | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to a random node; the outcome is recorded in `turn`."""
        node = self._choose.choice(self._cluster.nodes)
        started, outcome = time.time(), "no answer"
        try:
            async with self._session.request(method, node.url + path, json=body, headers=headers) as response:
                outcome = f"{response.status}"
                yield response
                outcome = f"{response.status}, complete"
        except CONNECTION_ERRORS as error:
            outcome += f", {type(error).__name__}: {error}"
            raise
        finally:
            if turn is not None:
                turn.tries.append(f"{started:.3f} to {time.time():.3f} {node.name} {headers}: {outcome}")

    async def _pause(self) -> None:
        await asyncio.sleep(self._choose.uniform(0.02, 0.2))


def number_of(frame: bytes) -> int:
    found = NUMBER.search(frame)
    return int(found[1]) if found is not None else -1
