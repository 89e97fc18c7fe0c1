"""Contexts without a run: counted and compacted with all that came before, and nothing of it is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.core.context.window import estimate_request
from outlive.core.errors import InvalidRequest, NotFound, TooMany
from outlive.core.events import Json
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateResponse, parse_create
from outlive.engine.slots import Capacity
from outlive.ports.catalog import NO_FILTERS, Paging
from outlive.testing import Script, answer, finish_chunk, text_chunk, usage_chunk
from tests.engine.harness import Harness, run_with_harness, text_of
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]
SUMMARY: Script = [[text_chunk("THE SUMMARY"), finish_chunk(), usage_chunk(100, 10)]]
TOOL = {"type": "function", "name": "f", "description": "Does something. " * 20}


def request(harness: Harness, input: Any = "Hi", **fields: Any) -> CreateResponse:
    return parse_create(
        {"model": "m", "input": input, "store": False, "generate": False, **fields}, harness.ids, Limits()
    )


async def count(harness: Harness, *args: Any, owner: str = "ann", **fields: Any) -> int:
    return (await harness.contexts.count(owner, request(harness, *args, **fields), model_given=True)).tokens


# -- counting


def test_tokens_are_counted_by_the_upstream_if_it_can_and_else_estimated(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        asked = request(harness)
        assert await harness.contexts.count("ann", asked, model_given=True) == (
            estimate_request(asked, asked.input),
            False,
        )
        harness.backend.counter = lambda call: 42
        assert await harness.contexts.count("ann", asked, model_given=True) == (42, True)
        # Without a model there is no upstream to ask.
        assert not (await harness.contexts.count("ann", asked, model_given=False)).exact

    run_with_harness(tmp_path, body, DONE)


def test_the_history_is_counted(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.backend.counter = lambda call: len(call.items)
        assert await count(harness, []) == 0
        first = await harness.answer("one")
        assert await count(harness, "two", previous_response_id=first["id"]) == 3
        conversation = await harness.converse()
        await harness.answer("one", conversation=conversation)
        assert await count(harness, "two", conversation=conversation) == 3
        assert await count(harness, [{"type": "item_reference", "id": first["output"][0]["id"]}]) == 1
        harness.backend.counter = None
        assert await count(harness, tools=[TOOL], instructions="Be kind.") > await count(harness) + 50

    run_with_harness(tmp_path, body, DONE)


def test_items_that_would_be_left_out_are_not_counted(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        items = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 100} for n in range(21)]
        harness.backend.context_window = 1000
        assert await count(harness, items) > 2000
        assert await count(harness, items, truncation="auto") <= 750

    run_with_harness(tmp_path, body, DONE)


def test_items_of_other_owners_and_unknown_ones_are_not_found(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer("one")
        conversation = await harness.converse()
        with pytest.raises(InvalidRequest):
            await count(harness, previous_response_id=first["id"], owner="bob")
        with pytest.raises(NotFound):
            await count(harness, conversation=conversation, owner="bob")
        with pytest.raises(NotFound) as caught:
            await count(harness, [{"type": "item_reference", "id": first["output"][0]["id"]}], owner="bob")
        assert caught.value.param == "input[0].id"

    run_with_harness(tmp_path, body, DONE)


# -- compacting


async def compact(harness: Harness, *args: Any, owner: str = "ann", **fields: Any) -> tuple[list[Json], Json | None]:
    return await harness.contexts.compact(owner, request(harness, *args, **fields))


def test_a_chain_becomes_the_users_messages_and_one_item(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer("one")
        second = await harness.answer("two", previous_response_id=first["id"])
        output, usage = await compact(harness, [], previous_response_id=second["id"])
        assert [text_of(item) for item in output] == ["one", "two", ""]
        assert output[-1]["type"] == "compaction"
        assert usage is not None and usage["input_tokens"] == 100
        # Sent back as it is, it is the beginning of a new chain.
        await harness.answer([*output, {"role": "user", "content": "three"}])
        texts = [text_of(item) for item in harness.backend.calls[-1].items]
        assert (texts[:2], texts[-1]) == (["one", "two"], "three")
        assert "THE SUMMARY" in texts[2]
        assert "Hello" not in texts

    run_with_harness(tmp_path, body, DONE, DONE, SUMMARY, DONE)


def test_a_compacted_context_can_be_compacted_again(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}]
        once, _ = await compact(harness, talk)
        more = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "2"}]
        twice, _ = await compact(harness, [*once, *more])
        assert [text_of(item) for item in twice] == ["one", "two", ""]
        asked = [text_of(item) for item in harness.backend.calls[-1].items]
        assert "THE SUMMARY" in asked[1]
        assert asked[2:4] == ["two", "2"]

    run_with_harness(tmp_path, body, SUMMARY)


def test_nothing_is_stored(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await compact(harness, "The canary sings.")
        records, _ = await harness.catalog.responses("ann", Paging(), NO_FILTERS)
        assert records == []

    run_with_harness(tmp_path, body, [answer("The canary sang.")])
    for file in tmp_path.iterdir():
        assert b"canary" not in file.read_bytes()


def test_a_forged_item_is_refused_by_name(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        output, _ = await compact(harness, "one")
        forged = {**output[-1], "encrypted_content": output[-1]["encrypted_content"][:-4] + "AAAA"}
        for owner, item in (("ann", forged), ("bob", output[-1])):
            asks = (
                compact(harness, [item], owner=owner),
                count(harness, [item], owner=owner),
                harness.create([item], owner=owner),
            )
            for ask in asks:
                with pytest.raises(InvalidRequest) as caught:
                    await ask
                assert caught.value.param == "input[0].encrypted_content"

    run_with_harness(tmp_path, body, SUMMARY)


def test_a_compaction_takes_a_place_like_any_run(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = asyncio.create_task(compact(harness, "one"))
        await gate.reached.wait()
        with pytest.raises(TooMany):
            await compact(harness, "two")
        gate.open()
        await first
        assert harness.worker.slots.running == 0

    gate = Gate()
    run_with_harness(tmp_path, body, [gate, *SUMMARY], capacity=Capacity(running=1, queued=5))
