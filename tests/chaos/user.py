"""A user: asks one question after the other, in every way there is, and never gives up on an answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

from tests.chaos.record import Turn
from tests.chaos.tales import Tale
from tests.chaos.wire import Answer, Wire
from tests.support.upstream import Json

STREAMS = ("stream", "background stream")
KINDS = (*STREAMS, *STREAMS, "background", "background", "plain", "retried", "cancel")
PLAIN = ("plain", "retried")
ENDED = ("completed", "incomplete", "failed", "cancelled")


class User:
    """`turns` holds everything they asked."""

    def __init__(self, name: str, wire: Wire, tales: dict[str, Tale], conversation: str | None, seed: str) -> None:
        self.name = name
        self.turns: list[Turn] = []
        self._wire = wire
        self._tales = tales
        self._conversation = conversation
        self._choose = random.Random(seed)
        self._numbers = itertools.count()
        self._last: str | None = None  # the response that the next one may continue

    async def ask_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._take_turn()

    async def _take_turn(self) -> None:
        kind = self._choose.choice(KINDS)
        if kind == "retried" and self._conversation is None:
            kind = "plain"
        name = f"{self.name}-{next(self._numbers)}"
        turn = Turn(name, self._choose.choice(list(self._tales)), kind, self._conversation)
        self.turns.append(turn)
        body: Json = {"model": turn.model, "input": f"question {name}", "metadata": {"turn": name}}
        if turn.conversation is not None:
            body["conversation"] = turn.conversation
        elif self._last is not None and self._choose.random() < 0.5:
            body["previous_response_id"] = self._last
        if "stream" in kind:
            await self._stream(turn, body)
        else:
            await self._create(turn, body)
        if self._conversation is None:
            self._last = turn.response_id
            await self._forget_failed()

    async def _stream(self, turn: Turn, body: Json) -> None:
        body |= {"stream": True, "background": turn.kind != "stream"}
        while not turn.frames:
            answer = await self._wire.stream(body, turn, turn.name)
            if answer is not None:
                await self._wait_for_room(turn, answer)
        turn.response_id = response_id_of(turn.frames[0])
        await self._wire.follow(turn)

    async def _create(self, turn: Turn, body: Json) -> None:
        """Without a stream; whoever asked plainly and was cut off asks again, and gets the answer that there is."""
        body["background"] = turn.kind not in PLAIN
        answer = await self._insist(turn, body)
        turn.response_id = answer.body["id"]
        if turn.kind == "cancel":
            await asyncio.sleep(self._choose.uniform(0, 2))
            turn.cancelled = True
            await self._wire.ask("POST", f"/responses/{turn.response_id}/cancel")
        if self._choose.random() < 0.3:
            await self._wire.follow(turn)
        await self._poll(turn)

    async def _insist(self, turn: Turn, body: Json) -> Answer:
        """Ask until there is a response."""
        for tried in itertools.count():
            headers = {"Idempotency-Key": turn.name}
            if turn.kind == "retried":  # as OpenAI's SDK does by itself: no key, but a count
                headers = {"x-stainless-retry-count": str(tried)}
            answer = await self._wire.ask_once("POST", "/responses", body, headers, turn)
            if answer is not None and answer.status == 200:
                return answer
            if answer is not None:
                await self._wait_for_room(turn, answer)
        raise AssertionError

    async def _poll(self, turn: Turn) -> None:
        while True:
            answer = await self._wire.ask("GET", f"/responses/{turn.response_id}?wait=2")
            if answer.status != 200:
                raise RuntimeError(f"{turn.name}: {answer}")
            if answer.body["status"] in ENDED:
                turn.over = True
                return

    async def _wait_for_room(self, turn: Turn, answer: Answer) -> None:
        """Only a locked conversation, a full or a stopping server are reasons to ask again."""
        error: dict[str, Any] = answer.body.get("error") or {}
        retriable = error.get("code") == "conversation_locked" or answer.status in (429, 503)
        # A plain request whose run failed is told so; its key begins a new one.
        if not retriable and not (turn.kind in PLAIN and answer.status >= 500):
            raise RuntimeError(f"{turn.name} ({turn.kind}): {answer}")
        await asyncio.sleep(self._choose.uniform(0.1, 0.5))

    async def _forget_failed(self) -> None:
        """What failed cannot be continued."""
        if self._last is not None:
            answer = await self._wire.ask("GET", f"/responses/{self._last}")
            if answer.body["status"] == "failed":
                self._last = None


def response_id_of(frame: bytes) -> str:
    event = json.loads(frame[frame.index(b"\ndata: ") + 7 :])
    return str(event["response"]["id"])
