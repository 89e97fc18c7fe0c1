"""The door: a request is accepted in one transaction, attached to what it repeats, or refused with nothing written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import (
    BrokenSeal,
    Conflict,
    ConversationLocked,
    InvalidRequest,
    NotFound,
    ShuttingDown,
    StorageUnavailable,
    TooMany,
    UpstreamFault,
)
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.secrets import purpose_of, unpack_secrets
from outlive.engine.admission import RETRY_AGE_SECONDS, RETRY_PATIENCE_SECONDS, RETRY_STEP_SECONDS
from outlive.engine.slots import Capacity
from outlive.ports.catalog import Paging
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, answer, finish_chunk
from outlive.tooling.registry import ToolRegistry
from tests.engine.bench import StubToolbox
from tests.engine.rig import Rig, answer_of, play, text_of
from tests.engine.virtual import turn
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]
FAILS: Script = [UpstreamFault("No.", retryable=False)]


async def count(rig: Rig, owner: str = "ann") -> int:
    records, _ = await rig.catalog.responses(owner, Paging(limit=100), statuses=[], conversation=None)
    return len(records)


# -- what is accepted


def test_an_accepted_response_is_durable_before_its_id_is_known(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create("Hi")
        record = await rig.catalog.response("ann", accepted.response_id)
        assert record.status == "in_progress"
        assert accepted.fold is not None
        assert (await rig.events(accepted.response_id))[0]["response"] == accepted.fold.response()
        page = await rig.catalog.input_items("ann", accepted.response_id, Paging())
        assert [text_of(item) for item in page.data] == ["Hi"]

    play(tmp_path, scene, [Gate()])


@pytest.mark.parametrize(
    ("background", "room", "types"),
    [
        (False, True, ["created", "in_progress"]),
        (True, True, ["created", "queued"]),
        (False, False, ["created"]),
        (True, False, ["created", "queued"]),
    ],
)
def test_the_first_events_say_how_far_it_is(tmp_path: Path, background: bool, room: bool, types: list[str]) -> None:
    async def scene(rig: Rig) -> None:
        if not room:
            await rig.create()
        accepted = await rig.create(background=background)
        assert (await rig.types(accepted.response_id))[: len(types)] == types
        first = (await rig.events(accepted.response_id))[0]["response"]
        assert first["status"] == ("in_progress" if types[-1] == "in_progress" else "queued")

    play(tmp_path, scene, [Gate()], capacity=Capacity(running=1, waiting=10))


def test_a_run_goes_on_when_its_connection_dies_at_once(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        reached = rig.ledger.hold("admit")
        admitting = asyncio.create_task(rig.create())
        await reached.wait()
        admitting.cancel()
        await turn()
        rig.ledger.let_go("admit")
        while await count(rig) == 0:
            await asyncio.sleep(0.001)
        assert answer_of(await rig.end("resp_2")) == "Hello"

    play(tmp_path, scene, DONE)


def test_what_waits_is_not_forgotten_when_its_connection_dies_at_once(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create()
        await gate.reached.wait()
        reached = rig.ledger.hold("admit")
        admitting = asyncio.create_task(rig.create())
        await reached.wait()
        admitting.cancel()
        rig.ledger.let_go("admit")
        while await count(rig) == 1:
            await asyncio.sleep(0.001)
        gate.open()
        await rig.end(first.response_id)
        assert (await rig.end("resp_4"))["status"] == "completed"

    gate = Gate()
    play(tmp_path, scene, [gate, *DONE], capacity=Capacity(running=1, waiting=1))


# -- what is refused


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"temperature": 9}, InvalidRequest),
        ({"background": True, "store": False}, InvalidRequest),
        ({"previous_response_id": "resp_none"}, InvalidRequest),
        ({"conversation": "conv_none"}, NotFound),
        ({"conversation": "conv_none", "store": False}, NotFound),
        ({"store": False, "key": "k"}, InvalidRequest),
    ],
)
def test_what_is_refused_leaves_nothing_and_takes_no_room(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception]
) -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(error):
            await rig.create(**fields)
        assert await count(rig) == 0
        assert rig.worker.room.running == 0
        assert rig.backend.calls == []

    play(tmp_path, scene, DONE)


def test_what_the_upstream_cannot_be_sent_is_refused_at_the_door(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        def check(request: CreateResponse) -> None:
            raise InvalidRequest("No tools here.", param="tools")

        rig.backend.check = check  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest, match="No tools"):
            await rig.create()
        assert await count(rig) == 0

    play(tmp_path, scene, DONE)


def test_a_database_that_is_down_refuses_and_takes_no_room(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        rig.ledger.failing = {"admit": 1}
        with pytest.raises(StorageUnavailable):
            await rig.create()
        assert rig.worker.room.running == 0
        assert answer_of(await rig.answer()) == "Hello"

    play(tmp_path, scene, DONE)


def test_a_locked_conversation_refuses_the_second(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        first = await rig.create(conversation=conversation)
        with pytest.raises(ConversationLocked, match=first.response_id):
            await rig.create(conversation=conversation)
        assert rig.worker.room.running == 1

    play(tmp_path, scene, [Gate()])


def test_nobody_is_let_in_while_the_server_leaves(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        await rig.worker.drain(0.0)
        for store in (True, False):
            with pytest.raises(ShuttingDown):
                await rig.create(store=store)

    play(tmp_path, scene, DONE)


# -- repeats with a key


def test_the_same_key_and_body_attach_to_the_same_response(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create("Hi", key="k")
        running = await rig.create("Hi", key="k")
        gate.open()
        final = await rig.end(first.response_id)
        ended = await rig.create("Hi", key="k")
        assert running.response_id == ended.response_id == first.response_id == final["id"]
        assert running.fold is None
        assert len(rig.backend.calls) == 1

    gate = Gate()
    play(tmp_path, scene, [gate, *DONE])


def test_repeats_that_come_at_the_same_time_run_once(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await asyncio.gather(*(rig.create("Hi", key="k") for _ in range(10)))
        assert len({each.response_id for each in accepted}) == 1
        await rig.end(accepted[0].response_id)
        assert len(rig.backend.calls) == 1
        await turn()
        assert rig.worker.room.running == 0

    play(tmp_path, scene, DONE)


def test_equal_bodies_are_equal_however_they_are_spelled(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create("Hi", key="k", metadata={"a": "1", "b": "2"}, temperature=1)
        again = await rig.create("Hi", key="k", temperature=1, metadata={"b": "2", "a": "1"})
        assert again.response_id == first.response_id

    play(tmp_path, scene, DONE)


def test_the_same_key_with_another_body_is_a_conflict(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        await rig.create("Hi", key="k")
        with pytest.raises(Conflict) as caught:
            await rig.create("Bye", key="k")
        assert caught.value.should_retry is False
        assert (await rig.create("Bye", key="k", owner="bob")).fold is not None

    play(tmp_path, scene, [Gate()])


def test_a_key_whose_response_failed_starts_anew(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        failed = await rig.answer("Hi", key="k")
        assert failed["status"] == "failed"
        again = await rig.answer("Hi", key="k")
        assert again["id"] != failed["id"]
        assert again["status"] == "completed"

    play(tmp_path, scene, FAILS, DONE)


def test_a_repeat_is_found_before_lock_and_limits(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        first = await rig.create("Hi", key="k", conversation=conversation)
        with pytest.raises(TooMany):
            await rig.create("other")
        again = await rig.create("Hi", key="k", conversation=conversation)
        assert again.response_id == first.response_id

    play(tmp_path, scene, [Gate()], capacity=Capacity(running=1, waiting=0))


# -- silent retries of the SDK


def test_a_silent_retry_attaches_to_what_its_dead_connection_created(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create("Hi", retry=0)
        again = await rig.create("Hi", retry=1)
        assert again.response_id == first.response_id
        other = await rig.create("Bye", retry=1)
        theirs = await rig.create("Hi", retry=1, owner="bob")
        assert len({first.response_id, other.response_id, theirs.response_id}) == 3

    play(tmp_path, scene, [Gate()])


def test_a_silent_retry_waits_for_what_is_still_being_admitted(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        reached = rig.ledger.hold("admit")
        first = asyncio.create_task(rig.create("Hi", retry=0))
        await reached.wait()
        again = asyncio.create_task(rig.create("Hi", retry=1))
        await asyncio.sleep(0.05)
        rig.ledger.let_go("admit")
        assert (await again).response_id == (await first).response_id
        assert not rig.door._coming

    play(tmp_path, scene, [Gate()])


def test_a_silent_retry_waits_a_moment_for_its_first_connection_to_die(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create("Hi", retry=0)
        rig.door.answering.add(first.response_id)
        retrying = asyncio.create_task(rig.create("Hi", retry=1))
        while len(rig.clock.slept) < 3:
            await asyncio.sleep(0)
        rig.door.answering.discard(first.response_id)
        assert (await retrying).response_id == first.response_id

    play(tmp_path, scene, [Gate()])


def test_a_connection_that_lives_keeps_its_response_to_itself(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create("Hi", retry=0)
        rig.door.answering.add(first.response_id)
        again = await rig.create("Hi", retry=1)
        assert again.response_id != first.response_id
        assert sum(rig.clock.slept) == pytest.approx(RETRY_PATIENCE_SECONDS)
        assert set(rig.clock.slept) == {RETRY_STEP_SECONDS}

    play(tmp_path, scene, [Gate()])


def test_what_was_answered_or_is_old_or_failed_is_not_attached_to(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        failed = await rig.answer("Hi", retry=0)
        assert failed["status"] == "failed"
        answered = await rig.create("Hi", retry=1)
        assert answered.response_id != failed["id"]
        await rig.ledger.mark_answered(answered.response_id)
        third = await rig.create("Hi", retry=1)
        assert third.response_id != answered.response_id
        rig.clock.time += RETRY_AGE_SECONDS + 1
        assert (await rig.create("Hi", retry=1)).response_id != third.response_id

    play(tmp_path, scene, FAILS, [Gate()])


def test_a_first_try_never_attaches(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        ids = {(await rig.create("Hi", retry=retry)).response_id for retry in (0, 0, None)}
        assert len(ids) == 3

    play(tmp_path, scene, [Gate()])


# -- not stored


def test_what_is_not_stored_cannot_wait_in_line(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create(store=False)
        with pytest.raises(TooMany):
            await rig.create(store=False)
        rig.fleeting.stop(first.response_id)
        await turn()
        await rig.create(store=False)

    play(tmp_path, scene, [Gate(), finish_chunk()], capacity=Capacity(running=1, waiting=10))


# -- secrets of tools

SECRETIVE = [{"type": "mcp", "server_label": "outlive", "authorization": "canary"}]


def test_secrets_of_tools_are_sealed_for_their_response(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        seal = SecretSeal([b"a key"])
        rig.door._toolbox, rig.door._seal = StubToolbox(), seal
        accepted = await rig.create(tools=SECRETIVE)
        assert accepted.fold is not None
        assert "canary" not in str(accepted.fold.header)
        claim = await rig.ledger.take_over(accepted.response_id, "other")
        assert claim is not None and claim.sealed is not None
        assert b"canary" not in claim.sealed
        opened = unpack_secrets(seal.open(claim.sealed, purpose_of(accepted.response_id)))
        assert opened == {"outlive": {"authorization": "canary"}}
        with pytest.raises(BrokenSeal):
            seal.open(claim.sealed, purpose_of("resp_other"))

    play(tmp_path, scene, [Gate()])


def test_secrets_that_cannot_be_sealed_are_refused_unless_nothing_is_stored(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        rig.door._toolbox = StubToolbox()
        with pytest.raises(InvalidRequest, match="OUTLIVE_SEAL_KEY") as refused:
            await rig.create(tools=SECRETIVE)
        assert (refused.value.param, refused.value.code) == ("tools", "unsupported_parameter")
        assert "canary" not in refused.value.message
        assert await count(rig) == 0
        await rig.create(tools=SECRETIVE, store=False)
        await rig.create(tools=[{"type": "mcp", "server_label": "outlive"}])

    play(tmp_path, scene, DONE)


def test_tools_that_the_server_has_not_got_are_refused_at_the_door(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        rig.door._toolbox = ToolRegistry([])
        with pytest.raises(InvalidRequest, match="no tools with the label 'docs'"):
            await rig.create(tools=[{"type": "mcp", "server_label": "docs"}])
        assert await count(rig) == 0

    play(tmp_path, scene, DONE)
