"""Admission: a request is accepted in one transaction, attached to what it repeats, or refused with nothing written."""

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
from outlive.core.requests.tools import purpose_of, unpack_secrets
from outlive.engine.retries import RETRY_AGE_SECONDS, RETRY_STEP_SECONDS, RETRY_WAIT_SECONDS
from outlive.engine.slots import Capacity
from outlive.ports.catalog import NO_FILTERS, Paging
from outlive.ports.toolbox import Tools
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, answer, finish_chunk
from outlive.tooling.registry import ToolRegistry
from tests.engine.harness import Harness, answer_of, run_with_harness, text_of
from tests.engine.tool_harness import StubToolbox
from tests.engine.virtual_clock import turn
from tests.support.scripting import CountingIds, Gate

DONE: Script = [answer("Hello")]
FAILS: Script = [UpstreamFault("No.", retryable=False)]


async def count(harness: Harness, owner: str = "ann") -> int:
    records, _ = await harness.catalog.responses(owner, Paging(limit=100), NO_FILTERS)
    return len(records)


# -- what is accepted


def test_an_accepted_response_is_durable_before_its_id_is_known(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create("Hi")
        record = await harness.catalog.response("ann", accepted.response_id)
        assert record.status == "in_progress"
        assert accepted.fold is not None
        assert (await harness.events(accepted.response_id))[0]["response"] == accepted.fold.response()
        page = await harness.catalog.input_items("ann", accepted.response_id, Paging())
        assert [text_of(item) for item in page.data] == ["Hi"]

    run_with_harness(tmp_path, body, [Gate()])


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
    async def body(harness: Harness) -> None:
        if not room:
            await harness.create()
        accepted = await harness.create(background=background)
        assert (await harness.types(accepted.response_id))[: len(types)] == types
        first = (await harness.events(accepted.response_id))[0]["response"]
        assert first["status"] == ("in_progress" if types[-1] == "in_progress" else "queued")

    run_with_harness(tmp_path, body, [Gate()], capacity=Capacity(running=1, queued=10))


def test_a_run_goes_on_when_its_connection_dies_at_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("admit")
        admitting = asyncio.create_task(harness.create())
        await reached.wait()
        admitting.cancel()
        await turn()
        harness.ledger.let_pass("admit")
        while await count(harness) == 0:
            await asyncio.sleep(0.001)
        assert answer_of(await harness.end("resp_2")) == "Hello"

    run_with_harness(tmp_path, body, DONE)


def test_a_queued_response_runs_though_its_connection_dies_at_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create()
        await gate.reached.wait()
        reached = harness.ledger.hold("admit")
        admitting = asyncio.create_task(harness.create())
        await reached.wait()
        admitting.cancel()
        harness.ledger.let_pass("admit")
        while await count(harness) == 1:
            await asyncio.sleep(0.001)
        gate.open()
        await harness.end(first.response_id)
        assert (await harness.end("resp_4"))["status"] == "completed"

    gate = Gate()
    run_with_harness(tmp_path, body, [gate, *DONE], capacity=Capacity(running=1, queued=1))


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
def test_a_refused_request_leaves_nothing_and_takes_no_slot(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception]
) -> None:
    async def body(harness: Harness) -> None:
        with pytest.raises(error):
            await harness.create(**fields)
        assert await count(harness) == 0
        assert harness.worker.slots.running == 0
        assert harness.backend.calls == []

    run_with_harness(tmp_path, body, DONE)


def test_an_input_that_the_upstream_cannot_be_sent_is_not_admitted(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        def check(request: CreateResponse) -> None:
            raise InvalidRequest("No tools here.", param="tools")

        harness.backend.check = check  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest, match="No tools"):
            await harness.create()
        assert await count(harness) == 0

    run_with_harness(tmp_path, body, DONE)


def test_a_database_that_is_down_refuses_and_takes_no_room(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.ledger.failing = {"admit": 1}
        with pytest.raises(StorageUnavailable):
            await harness.create()
        assert harness.worker.slots.running == 0
        assert answer_of(await harness.answer()) == "Hello"

    run_with_harness(tmp_path, body, DONE)


def test_a_locked_conversation_refuses_the_second(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        first = await harness.create(conversation=conversation)
        with pytest.raises(ConversationLocked, match=first.response_id):
            await harness.create(conversation=conversation)
        assert harness.worker.slots.running == 1

    run_with_harness(tmp_path, body, [Gate()])


def test_a_draining_server_admits_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await harness.engine.drain(0.0)
        for store in (True, False):
            with pytest.raises(ShuttingDown):
                await harness.create(store=store)

    run_with_harness(tmp_path, body, DONE)


# -- repeats with a key


def test_the_same_key_and_body_attach_to_the_same_response(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create("Hi", key="k")
        running = await harness.create("Hi", key="k")
        gate.open()
        final = await harness.end(first.response_id)
        ended = await harness.create("Hi", key="k")
        assert running.response_id == ended.response_id == first.response_id == final["id"]
        assert running.fold is None
        assert len(harness.backend.calls) == 1

    gate = Gate()
    run_with_harness(tmp_path, body, [gate, *DONE])


def test_repeats_that_come_at_the_same_time_run_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await asyncio.gather(*(harness.create("Hi", key="k") for _ in range(10)))
        assert len({each.response_id for each in accepted}) == 1
        await harness.end(accepted[0].response_id)
        assert len(harness.backend.calls) == 1
        await turn()
        assert harness.worker.slots.running == 0

    run_with_harness(tmp_path, body, DONE)


def test_equal_bodies_are_equal_however_they_are_spelled(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create("Hi", key="k", metadata={"a": "1", "b": "2"}, temperature=1)
        again = await harness.create("Hi", key="k", temperature=1, metadata={"b": "2", "a": "1"})
        assert again.response_id == first.response_id

    run_with_harness(tmp_path, body, DONE)


def test_the_same_key_with_another_body_is_a_conflict(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await harness.create("Hi", key="k")
        with pytest.raises(Conflict) as caught:
            await harness.create("Bye", key="k")
        assert caught.value.should_retry is False
        assert (await harness.create("Bye", key="k", owner="bob")).fold is not None

    run_with_harness(tmp_path, body, [Gate()])


def test_a_key_whose_response_failed_starts_anew(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        failed = await harness.answer("Hi", key="k")
        assert failed["status"] == "failed"
        again = await harness.answer("Hi", key="k")
        assert again["id"] != failed["id"]
        assert again["status"] == "completed"

    run_with_harness(tmp_path, body, FAILS, DONE)


def test_a_repeat_is_found_before_lock_and_limits(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        first = await harness.create("Hi", key="k", conversation=conversation)
        with pytest.raises(TooMany):
            await harness.create("other")
        again = await harness.create("Hi", key="k", conversation=conversation)
        assert again.response_id == first.response_id

    run_with_harness(tmp_path, body, [Gate()], capacity=Capacity(running=1, queued=0))


# -- silent retries of the SDK


def test_a_silent_retry_attaches_to_what_its_dead_connection_created(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create("Hi", retry=0)
        again = await harness.create("Hi", retry=1)
        assert again.response_id == first.response_id
        other = await harness.create("Bye", retry=1)
        theirs = await harness.create("Hi", retry=1, owner="bob")
        assert len({first.response_id, other.response_id, theirs.response_id}) == 3

    run_with_harness(tmp_path, body, [Gate()])


def test_a_silent_retry_waits_for_the_admission_of_the_first_request(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("admit")
        first = asyncio.create_task(harness.create("Hi", retry=0))
        await reached.wait()
        again = asyncio.create_task(harness.create("Hi", retry=1))
        await asyncio.sleep(0.05)
        harness.ledger.let_pass("admit")
        assert (await again).response_id == (await first).response_id
        assert not harness.admitter._retries._admitting

    run_with_harness(tmp_path, body, [Gate()])


def test_a_silent_retry_waits_a_moment_for_its_first_connection_to_die(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create("Hi", retry=0)
        harness.creates.here.add(first.response_id)
        retrying = asyncio.create_task(harness.create("Hi", retry=1))
        while len(harness.clock.slept) < 3:
            await asyncio.sleep(0)
        harness.creates.here.discard(first.response_id)
        assert (await retrying).response_id == first.response_id

    run_with_harness(tmp_path, body, [Gate()])


def test_a_connection_that_lives_keeps_its_response_to_itself(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create("Hi", retry=0)
        harness.creates.here.add(first.response_id)
        again = await harness.create("Hi", retry=1)
        assert again.response_id != first.response_id
        assert sum(harness.clock.slept) == pytest.approx(RETRY_WAIT_SECONDS)
        assert set(harness.clock.slept) == {RETRY_STEP_SECONDS}

    run_with_harness(tmp_path, body, [Gate()])


def test_a_retry_does_not_attach_to_an_answered_an_old_or_a_failed_response(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        failed = await harness.answer("Hi", retry=0)
        assert failed["status"] == "failed"
        answered = await harness.create("Hi", retry=1)
        assert answered.response_id != failed["id"]
        await harness.ledger.mark_answered(answered.response_id)
        third = await harness.create("Hi", retry=1)
        assert third.response_id != answered.response_id
        harness.clock.time += RETRY_AGE_SECONDS + 1
        assert (await harness.create("Hi", retry=1)).response_id != third.response_id

    run_with_harness(tmp_path, body, FAILS, [Gate()])


def test_a_first_try_never_attaches(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        ids = {(await harness.create("Hi", retry=retry)).response_id for retry in (0, 0, None)}
        assert len(ids) == 3

    run_with_harness(tmp_path, body, [Gate()])


# -- not stored


def test_a_response_that_is_not_stored_cannot_be_queued(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create(store=False)
        with pytest.raises(TooMany):
            await harness.create(store=False)
        harness.ephemeral.discard(first.response_id)
        await turn()
        await harness.create(store=False)

    run_with_harness(tmp_path, body, [Gate(), finish_chunk()], capacity=Capacity(running=1, queued=10))


# -- secrets of tools

SECRETIVE = [{"type": "mcp", "server_label": "outlive", "authorization": "canary"}]


def test_secrets_of_tools_are_sealed_for_their_response(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create(tools=SECRETIVE)
        assert accepted.fold is not None
        assert "canary" not in str(accepted.fold.header)
        claim = await harness.ledger.take_over(accepted.response_id, "other")
        assert claim is not None and claim.sealed is not None
        assert b"canary" not in claim.sealed
        opened = unpack_secrets(seal.open(claim.sealed, purpose_of(accepted.response_id)))
        assert opened == {"outlive": {"authorization": "canary"}}
        with pytest.raises(BrokenSeal):
            seal.open(claim.sealed, purpose_of("resp_other"))

    seal = SecretSeal([b"a key"])
    tools = Tools(toolbox=StubToolbox(), ids=CountingIds(), seal=seal)
    run_with_harness(tmp_path, body, [Gate()], tools=tools)


def test_secrets_that_cannot_be_sealed_are_refused_unless_nothing_is_stored(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        with pytest.raises(InvalidRequest, match="OUTLIVE_SEAL_KEY") as refused:
            await harness.create(tools=SECRETIVE)
        assert (refused.value.param, refused.value.code) == ("tools", "unsupported_parameter")
        assert "canary" not in refused.value.message
        assert await count(harness) == 0
        await harness.create(tools=SECRETIVE, store=False)
        await harness.create(tools=[{"type": "mcp", "server_label": "outlive"}])

    run_with_harness(tmp_path, body, DONE, tools=Tools(toolbox=StubToolbox(), ids=CountingIds()))


def test_tools_that_the_server_has_not_got_are_refused_at_the_door(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        with pytest.raises(InvalidRequest, match="no tools with the label 'docs'"):
            await harness.create(tools=[{"type": "mcp", "server_label": "docs"}])
        assert await count(harness) == 0

    run_with_harness(tmp_path, body, DONE, tools=Tools(toolbox=ToolRegistry([]), ids=CountingIds()))
