"""What came before a response, read once."""

from __future__ import annotations

import asyncio
from typing import Any

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.engine.run import context
from outlive.engine.run.context import ContextLoader
from outlive.ports.ledger import NO_CHECKPOINT, Claim, Lease, Memory, Position
from tests.engine.harness import FixedClock


def said(text: str, role: str = "user", **fields: Any) -> Json:
    return {
        "id": f"msg_{text}",
        "type": "message",
        "role": role,
        "content": [{"type": "input_text", "text": text}],
        **fields,
    }


HERE = Position(1, 5)


class Shelf:
    """A history that counts how often it is read."""

    def __init__(self, *items: Json) -> None:
        self.items = list(items)
        self.reads: list[Position] = []

    async def before(self, position: Position) -> list[Json]:
        self.reads.append(position)
        return self.items

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        raise NotImplementedError


def past_of(shelf: Shelf, memory: Memory | None = None, position: Position = HERE, **fields: Any) -> ContextLoader:
    request = CreateResponse(model="m", input=[said("now")], **fields)
    claim = Claim(Lease("resp_1", 1, 1), "ann", request, position, 1, NO_CHECKPOINT, False, memory=memory)
    return ContextLoader(claim, shelf, None, FixedClock())


def texts(items: list[Json]) -> list[str]:
    return [item["id"] for item in items]


def test_the_history_is_read_once() -> None:
    async def main() -> None:
        shelf = Shelf(said("before"))
        told_to_model = past_of(shelf, previous_response_id="resp_0")
        for _ in range(2):
            assert texts(await told_to_model.context()) == ["msg_before", "msg_now"]
        assert shelf.reads == [HERE]

    asyncio.run(main())


def test_what_begins_nothing_reads_nothing() -> None:
    async def main() -> None:
        shelf = Shelf(said("other"))
        assert texts(await past_of(shelf).context()) == ["msg_now"]
        assert texts(await past_of(shelf, position=Position(1, 0), conversation="conv_1").context()) == ["msg_now"]
        assert shelf.reads == []

    asyncio.run(main())


def test_what_a_connection_remembers_comes_after_what_is_stored() -> None:
    async def main() -> None:
        shelf = Shelf(said("stored"))
        told_to_model = past_of(shelf, Memory([said("remembered")], Position(2, 3)), previous_response_id="resp_0")
        assert texts(await told_to_model.context()) == ["msg_stored", "msg_remembered", "msg_now"]
        assert shelf.reads == [Position(2, 3)]
        assert texts(await past_of(shelf, Memory([said("alone")])).history()) == ["msg_alone"]

    asyncio.run(main())


def test_a_thought_that_was_broken_off_is_thought_anew() -> None:
    async def main() -> None:
        thought: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "incomplete"}
        own = [thought, {**thought, "id": "rs_2", "status": "completed"}, said("half", "assistant")]
        assert texts(await past_of(Shelf()).context(own)) == ["msg_now", "rs_2", "msg_half"]

    asyncio.run(main())


def test_a_long_context_is_put_together_all_the_same() -> None:
    async def main() -> None:
        shelf = Shelf(*(said(f"t{n}") for n in range(context.MANY_ITEMS + 1)))
        assert len(await past_of(shelf, previous_response_id="resp_0").context()) == context.MANY_ITEMS + 2

    asyncio.run(main())
