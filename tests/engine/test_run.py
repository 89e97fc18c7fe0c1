"""A run whose model answers in several steps by itself, such as an agent's: it goes on after any that is finished."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.adapters.backends.scripted import (
    Script,
    call_chunk,
    finish_chunk,
    reasoning_chunk,
    text_chunk,
    usage_chunk,
)
from outlive.core import calls
from outlive.core.calls import INTERRUPTED, Call, Outcome
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import MAX_ATTEMPTS
from outlive.ports.backend import Ending, ModelCall
from tests.engine.bench import Desk, StubToolbox, kinds, texts, told
from tests.engine.virtual import run_virtually


class NoTools(StubToolbox):
    def serves(self, request: Any) -> bool:
        return False


class AgentTranslator:
    """Every chunk is a step: a tool's name, whose call is made at once, or the last words."""

    def __init__(self, call: ModelCall) -> None:
        self._index = call.first

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        item_id = f"mcp_{self._index}"
        call = Call(item_id=item_id, output_index=self._index, label="agent", name=chunk.decode(), arguments="{}")
        self._index += 1
        if chunk == b"hang":
            return [*calls.announce(call), calls.begin(call)]
        return [*calls.announce(call), calls.begin(call), *calls.finish(call, Outcome("ok"))]

    def end(self) -> tuple[list[AnyDraft], Ending]:
        return [], Ending("completed")


def make_desk(*scripts: Script) -> Desk:
    desk = Desk(NoTools(), *scripts, tools=[])
    desk.backend.stepwise = True
    desk.backend.translator = AgentTranslator  # type: ignore[assignment,method-assign]
    return desk


def test_it_is_asked_again_with_the_steps_that_are_finished() -> None:
    async def go() -> None:
        whole = make_desk([[b"one"], [b"two"]])
        await whole.run()
        done = [n for n, event in enumerate(whole.events()) if event["type"] == "response.output_item.done"]
        whole.cut(done[0])
        whole.backend.scripts = [[[b"two"]]]
        final = await whole.run()
        assert [item["name"] for item in final["output"]] == ["one", "two"]
        again = whole.backend.calls[-1]
        assert (again.first, told(again.items)) == (1, ["Hi", "one", "ok"])
        assert final["outlive"] == {"attempts": 2, "joints": [done[0] + 1]}

    run_virtually(go())


def test_a_call_of_its_own_that_was_under_way_has_failed_and_it_is_told_so() -> None:
    async def go() -> None:
        desk = make_desk([[b"one"], [b"hang"], UpstreamFault("Gone.")], [[b"three"]])
        final = await desk.run()
        assert [item["status"] for item in final["output"]] == ["completed", "failed", "completed"]
        assert final["output"][1]["error"]["content"][0]["text"] == INTERRUPTED
        assert INTERRUPTED in told(desk.backend.calls[-1].items)[-1]

    run_virtually(go())


def test_what_it_said_is_durable_when_it_has_settled() -> None:
    async def go() -> None:
        desk = make_desk([[b"one"]])
        seen: list[Json] = []
        plain = desk.backend.stream

        async def stream(call: ModelCall, hear: Any = None) -> Any:
            async for chunks in plain(call):
                yield chunks
                assert call.settle is not None
                await call.settle()
                seen.extend(desk.events())

        desk.backend.stream = stream  # type: ignore[method-assign]
        await desk.run()
        assert seen[-1]["type"] == "response.output_item.done"

    run_virtually(go())


# -- thoughts


THINKING: list[bytes] = [reasoning_chunk("Hm, "), reasoning_chunk("well")]
ANSWER: list[bytes] = [text_chunk("18."), finish_chunk(), usage_chunk()]


def with_tools(*scripts: Script) -> Desk:
    return Desk(StubToolbox(), *scripts)


def test_a_thought_that_was_broken_off_is_thought_anew_where_there_are_tools() -> None:
    async def go() -> None:
        desk = with_tools([THINKING, UpstreamFault("Gone.")], [THINKING, ANSWER])
        final = await desk.run()
        assert [(item["type"], item["status"]) for item in final["output"]] == [
            ("reasoning", "incomplete"),
            ("reasoning", "completed"),
            ("message", "completed"),
        ]
        assert (final["status"], texts(final)) == ("completed", "18.")
        assert told(desk.backend.calls[-1].items) == ["Hi"]

    run_virtually(go())


def test_no_thought_is_thought_anew_for_ever() -> None:
    async def go() -> None:
        desk = with_tools([THINKING, UpstreamFault("Gone.")])
        final = await desk.run()
        assert (final["status"], kinds(final)) == ("incomplete", ["reasoning"] * MAX_ATTEMPTS)

    run_virtually(go())


@pytest.mark.parametrize("client_call", [True, False])
def test_other_things_that_are_half_shown_end_it(client_call: bool) -> None:
    async def go() -> None:
        half = call_chunk(0, "c", "shell", '{"a') if client_call else text_chunk("Half")
        desk = with_tools([[half], UpstreamFault("Gone.")], [ANSWER])
        final = await desk.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")

    run_virtually(go())
