"""Concurrent requests: every client gets its own answer, and a conversation runs one turn at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

from openai import AsyncOpenAI, OpenAI

from tests.support.http_client import Answer, HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Script, ending, say, text
from tests.wire import events


def echo(body: Json) -> Script:
    """Return a script that repeats the question word by word."""
    return [*(text(word + " ") for word in body["messages"][-1]["content"].split()), *ending()]


def test_a_hundred_concurrent_streams_each_get_their_own_answer(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(echo)

    async def ask(client: AsyncOpenAI, number: int) -> str:
        question = " ".join(f"{number}-{word}" for word in range(20))
        received: list[Json] = []
        stream = await client.responses.create(model=model, input=question, stream=True, background=number % 2 == 0)
        async for event in stream:
            received.append(event.to_dict(mode="json"))
        events.check(received)
        assert events.text_of(received) == question + " "
        return str(received[0]["response"]["id"])

    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(100)))

    assert len(set(asyncio.run(run()))) == 100


def test_one_of_many_concurrent_turns_is_accepted(http: HttpClient, client: OpenAI, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create().id
    gate = Gate()
    model = upstream.model([gate, *say("Mine.")])
    answers: list[Answer] = []

    def ask(number: int) -> None:
        body = {"model": model, "input": f"turn {number}", "conversation": conversation, "background": number % 2 == 0}
        answers.append(http.post("/v1/responses", body))

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(10)]
    for asker in askers:
        asker.start()
    gate.wait_reached()
    deadline = time.monotonic() + 20
    while len(answers) < 9:  # all refusals; the accepted one may have ended, too
        assert time.monotonic() < deadline
        time.sleep(0.01)
    gate.open()
    for asker in askers:
        asker.join(20)
    assert Counter(answer.status for answer in answers) == {200: 1, 400: 9}
    refused = [answer.error["code"] for answer in answers if answer.status == 400]
    assert refused == ["conversation_locked"] * 9
    taken = next(answer.json()["id"] for answer in answers if answer.status == 200)
    http.get(f"/v1/responses/{taken}?wait=10")
    assert [role for role, _ in http.list_messages(conversation)] == ["user", "assistant"]
    assert len(upstream.calls(model)) == 1


def test_concurrently_added_items_are_all_stored(http: HttpClient, client: OpenAI) -> None:
    conversation = client.conversations.create().id
    path = f"/v1/conversations/{conversation}/items"

    def add(number: int) -> None:
        items = [{"role": "user", "content": f"{number}-{n}"} for n in range(3)]
        assert http.post(path, {"items": items}).status == 200

    adders = [threading.Thread(target=add, args=(number,)) for number in range(10)]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join(20)
    said = [words for _, words in http.list_messages(conversation)]
    assert sorted(said) == sorted(f"{number}-{n}" for number in range(10) for n in range(3))
    # Items of one request stay together.
    assert all(said[at].split("-")[0] == said[at + 2].split("-")[0] for at in range(0, 30, 3))
