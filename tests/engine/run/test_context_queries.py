"""Contexts without a run: counted and compacted with all that came before, and nothing of it is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.core.context.estimate import estimate_request
from outlive.core.errors import InvalidRequest, NotFound, TooMany
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse, parse_create
from outlive.core.requests.limits import Limits
from outlive.engine.slots import Capacity
from outlive.ports.catalog import Paging
from outlive.testing import Script, answer, finish_chunk, text_chunk, usage_chunk
from tests.engine.rig import Rig, play, text_of
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]
SUMMARY: Script = [[text_chunk("THE SUMMARY"), finish_chunk(), usage_chunk(100, 10)]]
TOOL = {"type": "function", "name": "f", "description": "Does something. " * 20}


def request(rig: Rig, input: Any = "Hi", **fields: Any) -> CreateResponse:
    return parse_create({"model": "m", "input": input, "store": False, "generate": False, **fields}, rig.ids, Limits())


async def count(rig: Rig, *args: Any, owner: str = "ann", **fields: Any) -> int:
    return (await rig.contexts.count(owner, request(rig, *args, **fields), model_given=True)).tokens


# -- counting


def test_whoever_can_count_is_asked_and_otherwise_it_is_an_estimate(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        asked = request(rig)
        assert await rig.contexts.count("ann", asked, model_given=True) == (estimate_request(asked, asked.input), False)
        rig.backend.counter = lambda call: 42
        assert await rig.contexts.count("ann", asked, model_given=True) == (42, True)
        # Nobody knows whom to ask.
        assert not (await rig.contexts.count("ann", asked, model_given=False)).exact

    play(tmp_path, scene, DONE)


def test_what_came_before_counts(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        rig.backend.counter = lambda call: len(call.items)
        assert await count(rig, []) == 0
        first = await rig.answer("one")
        assert await count(rig, "two", previous_response_id=first["id"]) == 3
        conversation = await rig.converse()
        await rig.answer("one", conversation=conversation)
        assert await count(rig, "two", conversation=conversation) == 3
        assert await count(rig, [{"type": "item_reference", "id": first["output"][0]["id"]}]) == 1
        rig.backend.counter = None
        assert await count(rig, tools=[TOOL], instructions="Be kind.") > await count(rig) + 50

    play(tmp_path, scene, DONE)


def test_what_would_be_left_out_does_not_count(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        items = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 100} for n in range(21)]
        rig.backend.context_window = 1000
        assert await count(rig, items) > 2000
        assert await count(rig, items, truncation="auto") <= 750

    play(tmp_path, scene, DONE)


def test_others_things_and_nobodys_are_not_found(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.answer("one")
        conversation = await rig.converse()
        with pytest.raises(InvalidRequest):
            await count(rig, previous_response_id=first["id"], owner="bob")
        with pytest.raises(NotFound):
            await count(rig, conversation=conversation, owner="bob")
        with pytest.raises(NotFound) as caught:
            await count(rig, [{"type": "item_reference", "id": first["output"][0]["id"]}], owner="bob")
        assert caught.value.param == "input[0].id"

    play(tmp_path, scene, DONE)


# -- compacting


async def compact(rig: Rig, *args: Any, owner: str = "ann", **fields: Any) -> tuple[list[Json], Json | None]:
    return await rig.contexts.compact(owner, request(rig, *args, **fields))


def test_a_chain_becomes_the_users_messages_and_one_item(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.answer("one")
        second = await rig.answer("two", previous_response_id=first["id"])
        output, usage = await compact(rig, [], previous_response_id=second["id"])
        assert [text_of(item) for item in output] == ["one", "two", ""]
        assert output[-1]["type"] == "compaction"
        assert usage is not None and usage["input_tokens"] == 100
        # Sent back as it is, it is the beginning of a new chain.
        await rig.answer([*output, {"role": "user", "content": "three"}])
        texts = [text_of(item) for item in rig.backend.calls[-1].items]
        assert (texts[:2], texts[-1]) == (["one", "two"], "three")
        assert "THE SUMMARY" in texts[2]
        assert "Hello" not in texts

    play(tmp_path, scene, DONE, DONE, SUMMARY, DONE)


def test_what_was_compacted_can_be_compacted_again(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}]
        once, _ = await compact(rig, talk)
        more = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "2"}]
        twice, _ = await compact(rig, [*once, *more])
        assert [text_of(item) for item in twice] == ["one", "two", ""]
        asked = [text_of(item) for item in rig.backend.calls[-1].items]
        assert "THE SUMMARY" in asked[1]
        assert asked[2:4] == ["two", "2"]

    play(tmp_path, scene, SUMMARY)


def test_nothing_is_stored(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        await compact(rig, "The canary sings.")
        records, _ = await rig.catalog.responses("ann", Paging(), statuses=[], conversation=None)
        assert records == []

    play(tmp_path, scene, [answer("The canary sang.")])
    for file in tmp_path.iterdir():
        assert b"canary" not in file.read_bytes()


def test_a_forged_item_is_refused_by_name(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        output, _ = await compact(rig, "one")
        forged = {**output[-1], "encrypted_content": output[-1]["encrypted_content"][:-4] + "AAAA"}
        for owner, item in (("ann", forged), ("bob", output[-1])):
            asks = compact(rig, [item], owner=owner), count(rig, [item], owner=owner), rig.create([item], owner=owner)
            for ask in asks:
                with pytest.raises(InvalidRequest) as caught:
                    await ask
                assert caught.value.param == "input[0].encrypted_content"

    play(tmp_path, scene, SUMMARY)


def test_a_compaction_takes_a_place_like_any_run(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = asyncio.create_task(compact(rig, "one"))
        await gate.reached.wait()
        with pytest.raises(TooMany):
            await compact(rig, "two")
        gate.open()
        await first
        assert rig.worker.room.running == 0

    gate = Gate()
    play(tmp_path, scene, [gate, *SUMMARY], capacity=Capacity(running=1, waiting=5))
