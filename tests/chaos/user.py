"""A user, who asks one question after the other in every mode and retries until each is answered."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

from tests.chaos.client import ClusterClient, JsonAnswer
from tests.chaos.counts import Turn
from tests.chaos.scripts import Expected
from tests.support.http_client import ENDED, Json, event_of

STREAMS = ("stream", "background stream")
KINDS = (*STREAMS, *STREAMS, "background", "background", "plain", "retried", "cancel")
PLAIN = ("plain", "retried")


class User:
    """`turns` holds every question they asked."""

    def __init__(
        self, name: str, client: ClusterClient, answers: dict[str, Expected], conversation: str | None, seed: str
    ) -> None:
        self.name = name
        self.turns: list[Turn] = []
        self._client = client
        self._models = list(answers)
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
        turn = Turn(name, self._choose.choice(self._models), kind, self._conversation)
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
            answer = await self._client.stream(body, turn, turn.name)
            if answer is not None:
                await self._wait_to_retry(turn, answer)
        turn.response_id = response_id_of(turn.frames[0])
        await self._client.follow(turn)

    async def _create(self, turn: Turn, body: Json) -> None:
        """Create without a stream; a plain request that was cut off is repeated and gets the existing response."""
        body["background"] = turn.kind not in PLAIN
        answer = await self._create_until_accepted(turn, body)
        turn.response_id = answer.body["id"]
        if turn.kind == "cancel":
            await asyncio.sleep(self._choose.uniform(0, 2))
            turn.cancelled = True
            await self._client.request("POST", f"/responses/{turn.response_id}/cancel")
        if self._choose.random() < 0.3:
            await self._client.follow(turn)
        await self._poll(turn)

    async def _create_until_accepted(self, turn: Turn, body: Json) -> JsonAnswer:
        for tried in itertools.count():
            headers = {"Idempotency-Key": turn.name}
            if turn.kind == "retried":  # like the retries inside OpenAI's SDK: no key, but a count
                headers = {"x-stainless-retry-count": str(tried)}
            answer = await self._client.request_once("POST", "/responses", body, headers, turn)
            if answer is not None and answer.status == 200:
                return answer
            if answer is not None:
                await self._wait_to_retry(turn, answer)
        raise AssertionError

    async def _poll(self, turn: Turn) -> None:
        while True:
            answer = await self._client.request("GET", f"/responses/{turn.response_id}?wait=2")
            if answer.status != 200:
                raise RuntimeError(f"{turn.name}: {answer}")
            if answer.body["status"] in ENDED:
                turn.ended = True
                return

    async def _wait_to_retry(self, turn: Turn, answer: JsonAnswer) -> None:
        """Wait a moment after a refusal that may pass: a locked conversation, a full or a draining server."""
        error: dict[str, Any] = answer.body.get("error") or {}
        retriable = error.get("code") == "conversation_locked" or answer.status in (429, 503)
        # A plain request whose run failed is answered with that; its key starts a new one.
        if not retriable and not (turn.kind in PLAIN and answer.status >= 500):
            raise RuntimeError(f"{turn.name} ({turn.kind}): {answer}")
        await asyncio.sleep(self._choose.uniform(0.1, 0.5))

    async def _forget_failed(self) -> None:
        """Forget a last response that failed: it cannot be continued."""
        if self._last is not None:
            answer = await self._client.request("GET", f"/responses/{self._last}")
            if answer.body["status"] == "failed":
                self._last = None


def response_id_of(frame: bytes) -> str:
    return str(event_of(frame)["response"]["id"])
