"""The context loader: the history of a response is read once, and comes before its input and its own output."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.context.compaction import Compacted
from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.engine.budget import ByteBudget
from outlive.engine.run import context
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.context import OWNER_BYTES, STORAGE_TRIES, ContextLoader
from outlive.engine.waiting import STORAGE_PAUSE
from outlive.ports.database import LoadedItems
from outlive.ports.ledger import NO_CHECKPOINT, Claim, Lease, Memory, Position
from outlive.ports.storage import UNBOUNDED
from outlive.storage.seal import SecretSeal
from tests.engine.harness import FixedClock
from tests.support.scripting import CountingIds

POSITION = Position(1, 5)


def message(text: str, role: str = "user", **fields: Any) -> Json:
    return {
        "id": f"msg_{text}",
        "type": "message",
        "role": role,
        "content": [{"type": "input_text", "text": text}],
        **fields,
    }


class CountingHistory:
    """A history that records its reads, the first of which may fail."""

    def __init__(self, *items: Json, failing: int = 0) -> None:
        self.items = list(items)
        self.failing = failing
        self.reads: list[Position] = []

    async def before(self, position: Position, most: int = UNBOUNDED) -> LoadedItems:
        self.reads.append(position)
        if len(self.reads) <= self.failing:
            raise StorageUnavailable("history")
        return LoadedItems(self.items, True)

    async def find_outputs(self, owner: str, item_ids: list[str]) -> list[Json]:
        raise NotImplementedError

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        raise NotImplementedError


def make_loader(
    history: CountingHistory,
    memory: Memory | None = None,
    position: Position = POSITION,
    clock: FixedClock | None = None,
    given: Json | None = None,
    **fields: Any,
) -> ContextLoader:
    request = CreateResponse(model="m", input=[given or message("now")], **fields)
    claim = Claim(Lease("resp_1", 1, 1), "ann", request, position, 1, NO_CHECKPOINT, False, memory=memory)
    clock = clock or FixedClock()
    return ContextLoader(
        claim, history, Compactor(SecretSeal([b""]), CountingIds(), clock), clock, ByteBudget(OWNER_BYTES)
    )


def ids(items: list[Json]) -> list[str]:
    return [item["id"] for item in items]


def test_the_history_is_read_once() -> None:
    async def body() -> None:
        history = CountingHistory(message("before"))
        loader = make_loader(history, previous_response_id="resp_0")
        for _ in range(2):
            assert ids(await loader.assemble()) == ["msg_before", "msg_now"]
        assert history.reads == [POSITION]

    asyncio.run(body())


def test_a_response_that_continues_nothing_reads_no_history() -> None:
    async def body() -> None:
        history = CountingHistory(message("other"))
        begins_conversation = make_loader(history, position=Position(1, 0), conversation="conv_1")
        assert ids(await make_loader(history).assemble()) == ["msg_now"]
        assert ids(await begins_conversation.assemble()) == ["msg_now"]
        assert history.reads == []

    asyncio.run(body())


def test_the_memory_of_a_connection_comes_after_the_stored_history() -> None:
    async def body() -> None:
        history = CountingHistory(message("stored"))
        memory = Memory([message("remembered")], Position(2, 3))
        loader = make_loader(history, memory, previous_response_id="resp_0")
        assert ids(await loader.assemble()) == ["msg_stored", "msg_remembered", "msg_now"]
        assert history.reads == [Position(2, 3)]
        assert ids(await make_loader(history, Memory([message("alone")])).history()) == ["msg_alone"]

    asyncio.run(body())


def test_reasoning_that_was_cut_off_is_left_out() -> None:
    async def body() -> None:
        reasoning: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "incomplete"}
        own = [reasoning, {**reasoning, "id": "rs_2", "status": "completed"}, message("half", "assistant")]
        assert ids(await make_loader(CountingHistory()).assemble(own)) == ["msg_now", "rs_2", "msg_half"]

    asyncio.run(body())


def test_a_long_context_is_assembled_too() -> None:
    async def body() -> None:
        history = CountingHistory(*(message(f"t{n}") for n in range(context.MANY_ITEMS + 1)))
        loader = make_loader(history, previous_response_id="resp_0")
        assert len(await loader.assemble()) == context.MANY_ITEMS + 2

    asyncio.run(body())


def test_a_history_that_cannot_be_read_is_tried_again() -> None:
    async def body() -> None:
        history, clock = CountingHistory(message("before"), failing=3), FixedClock()
        loader = make_loader(history, clock=clock, previous_response_id="resp_0")
        assert ids(await loader.history()) == ["msg_before"]
        assert clock.slept == [STORAGE_PAUSE] * 3

    asyncio.run(body())


@pytest.mark.parametrize(("store", "tries"), [(True, STORAGE_TRIES), (False, 1)])
def test_a_storage_that_stays_down_raises_after_all_tries(store: bool, tries: int) -> None:
    async def body() -> None:
        history = CountingHistory(failing=1_000)
        with pytest.raises(StorageUnavailable):
            await make_loader(history, previous_response_id="resp_0", store=store).history()
        assert len(history.reads) == tries

    asyncio.run(body())


def test_a_compaction_item_is_opened_in_the_history_and_in_the_input() -> None:
    async def read(*history: Json, **fields: Any) -> list[Json]:
        return await make_loader(CountingHistory(*history), previous_response_id="resp_0", **fields).assemble()

    async def body() -> None:
        compactor = Compactor(SecretSeal([b""]), CountingIds(), FixedClock())
        item = await compactor.make("ann", Compacted("The canary sings."))
        for items in (await read(message("gone"), item), await read(message("gone"), given=item)):
            assert "gone" not in str(items)
            assert "The canary sings." in str(items[0])

    asyncio.run(body())
