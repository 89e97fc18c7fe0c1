"""Recovery of a run whose upstream broke or whose worker died: continued in place, with the next step, or cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlive.core import toolcalls
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import MAX_ATTEMPTS
from outlive.core.toolcalls import INTERRUPTED, ToolCall, ToolOutcome
from outlive.engine.run.closer import CUT_OFF
from outlive.engine.run.run import RESTARTED, TOO_OFTEN
from outlive.ports.backend import Ending, ModelCall
from outlive.testing import (
    Script,
    answer,
    call_chunk,
    error_chunk,
    finish_chunk,
    reasoning_chunk,
    text_chunk,
    usage_chunk,
)
from tests.engine.harness import Harness, answer_of, run_with_harness
from tests.engine.tool_harness import NoTools, StubToolbox, ToolHarness, item_types, outline, texts
from tests.engine.virtual_clock import run_virtually
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The model's server went away.")
DONE: Script = [answer("Hello")]
REASONING: list[bytes] = [reasoning_chunk("Hm, "), reasoning_chunk("well")]
ANSWER: list[bytes] = [text_chunk("18."), finish_chunk(), usage_chunk()]


# -- an upstream that breaks after something was shown


@pytest.mark.parametrize(
    "broken",
    [
        ["Hel", BROKEN],
        ["Hel"],
        ["Hel", error_chunk("out of memory")],
        [[text_chunk("Hel"), error_chunk("out of memory")]],
    ],
)
def test_an_answer_that_cannot_be_continued_ends_as_incomplete(tmp_path: Path, broken: Script) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        final = await harness.answer("Hi", conversation=conversation)
        assert final["status"] == "incomplete"
        assert final["incomplete_details"]["reason"] == "interrupted"
        assert final["incomplete_details"]["message"].startswith(CUT_OFF)
        assert final["output"][0]["status"] == "incomplete"
        assert len(harness.backend.calls) == 1
        assert await harness.texts_of(conversation) == ["Hi", "Hel"]

    run_with_harness(tmp_path, body, broken)


@pytest.mark.parametrize("mode", ["prefill", "continue_final_message", "prefix"])
def test_an_open_text_is_continued_in_place_by_an_upstream_that_can(tmp_path: Path, mode: str) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")
        types = await harness.types(final["id"])
        assert types.count("output_item.added") == 1
        resumed_at = types.index("output_text.delta") + 2
        assert final["outlive"] == {"attempts": 2, "resumed_at": [resumed_at]}
        resume = harness.backend.calls[1].resume
        assert resume is not None
        assert (resume.text, resume.deltas) == ("Hello", 2)
        assert harness.clock.slept == []

    run_with_harness(tmp_path, body, ["Hel", "lo", BROKEN], [" there", finish_chunk()], continuation=mode)


def test_a_run_is_resumed_any_number_of_times_while_each_brings_something_new(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "abcdef.")
        assert len(final["outlive"]["resumed_at"]) == 6
        assert final["outlive"]["attempts"] == 7

    scripts: list[Script] = []
    for letter in "abcdef":
        scripts.append([letter, BROKEN])
    scripts.append([".", finish_chunk()])
    run_with_harness(tmp_path, body, *scripts, continuation="prefill")


def test_resumptions_that_bring_nothing_new_end_the_run(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hel")
        assert final["incomplete_details"]["reason"] == "interrupted"
        assert len(harness.backend.calls) == 4
        assert harness.clock.slept == [0.5, 1.0, 2.0]

    run_with_harness(tmp_path, body, ["Hel", BROKEN], [BROKEN], continuation="prefill")


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ([reasoning_chunk("Hm"), BROKEN], {}),
        ([call_chunk(0, "call_a", "weather", "{"), BROKEN], {}),
        (["{", BROKEN], {"text": {"format": {"type": "json_object"}}}),
        (["Hel", BROKEN], {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
        (["Hel", UpstreamFault("No such model.", code="invalid_prompt", status=404, retryable=False)], {}),
    ],
)
def test_an_answer_that_cannot_be_made_whole_is_not_continued(tmp_path: Path, script: Script, fields: Json) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer(**fields)
        assert final["status"] == "incomplete"
        assert len(harness.backend.calls) == 1

    run_with_harness(tmp_path, body, script, DONE, continuation="prefill")


def test_usage_of_a_continued_answer_adds_up(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["usage"]["output_tokens"] == 2 + 5

    script: Script = [" there", finish_chunk(), usage_chunk(3, 5)]
    run_with_harness(tmp_path, body, ["Hel", "lo", BROKEN], script, continuation="prefill")


# -- after the worker died


def test_a_run_that_was_visible_before_the_crash_is_continued_by_the_next_worker(tmp_path: Path) -> None:
    async def before_crash(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.live.get(accepted.response_id).flush()  # type: ignore[union-attr]

    async def after_crash(harness: Harness) -> None:
        assert await harness.worker.recover() == 1
        final = await harness.end("resp_2")
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")
        assert final["outlive"]["attempts"] == 2
        assert len(final["outlive"]["resumed_at"]) == 1

    gate = Gate()
    run_with_harness(tmp_path, before_crash, ["Hel", "lo", gate], continuation="prefill")
    run_with_harness(tmp_path, after_crash, [" there", finish_chunk()], continuation="prefill")


def test_a_run_that_was_visible_before_the_crash_is_cut_off_if_it_cannot_be_continued(tmp_path: Path) -> None:
    async def before_crash(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.live.get(accepted.response_id).flush()  # type: ignore[union-attr]

    async def after_crash(harness: Harness) -> None:
        await harness.worker.recover()
        final = await harness.end("resp_2")
        assert (final["status"], answer_of(final)) == ("incomplete", "Hel")
        assert final["incomplete_details"] == {"reason": "interrupted", "message": f"{CUT_OFF} {RESTARTED}"}
        assert final["outlive"]["reason"] == {"code": "worker_lost", "retryable": True}
        assert harness.backend.calls == []

    gate = Gate()
    run_with_harness(tmp_path, before_crash, ["Hel", gate])
    run_with_harness(tmp_path, after_crash, DONE)


def test_a_run_that_showed_nothing_is_tried_three_times_in_all(tmp_path: Path) -> None:
    async def before_crash(harness: Harness) -> None:
        await (harness.worker.recover() if started else harness.create())
        started.append(True)
        await gate.reached.wait()

    async def after_crashes(harness: Harness) -> None:
        await harness.worker.recover()
        final = await harness.end("resp_2")
        assert final["status"] == "failed"
        assert final["error"] == {"code": "server_error", "message": TOO_OFTEN}
        assert final["outlive"]["reason"] == {"code": "worker_lost", "retryable": True}
        assert final["outlive"]["attempts"] == 3
        assert harness.backend.calls == []

    started: list[bool] = []
    for _ in range(3):
        gate = Gate()
        run_with_harness(tmp_path, before_crash, [gate])
    run_with_harness(tmp_path, after_crashes, DONE)


# -- a backend that answers in several steps by itself, such as an agent


class AgentTranslator:
    """Translates each chunk to one step: a whole call of the tool that it names. The call of `hang` does not end."""

    def __init__(self, call: ModelCall) -> None:
        self._index = call.first

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        item_id = f"mcp_{self._index}"
        call = ToolCall(item_id=item_id, output_index=self._index, label="agent", name=chunk.decode(), arguments="{}")
        self._index += 1
        if chunk == b"hang":
            return [*toolcalls.announce(call), toolcalls.begin(call)]
        return [*toolcalls.announce(call), toolcalls.begin(call), *toolcalls.finish(call, ToolOutcome("ok"))]

    def end(self) -> tuple[list[AnyDraft], Ending]:
        return [], Ending("completed")

    def usage(self) -> None:
        return None


def make_agent(*scripts: Script) -> ToolHarness:
    harness = ToolHarness(NoTools(), *scripts, tools=[])
    harness.backend.stepwise = True
    harness.backend.translator = AgentTranslator  # type: ignore[assignment,method-assign]
    return harness


def test_an_agent_is_asked_again_with_its_finished_steps() -> None:
    async def body() -> None:
        harness = make_agent([[b"one"], [b"two"]])
        await harness.run()
        done = harness.positions("response.output_item.done")
        harness.cut(done[0])
        harness.backend.scripts = [[[b"two"]]]
        final = await harness.run()
        assert [item["name"] for item in final["output"]] == ["one", "two"]
        again = harness.backend.calls[-1]
        assert (again.first, outline(again.items)) == (1, ["Hi", "one", "ok"])
        assert final["outlive"] == {"attempts": 2, "resumed_at": [done[0] + 1]}

    run_virtually(body())


def test_a_call_that_an_agent_was_making_fails_and_the_agent_gets_the_failure() -> None:
    async def body() -> None:
        harness = make_agent([[b"one"], [b"hang"], UpstreamFault("Gone.")], [[b"three"]])
        final = await harness.run()
        assert [item["status"] for item in final["output"]] == ["completed", "failed", "completed"]
        assert final["output"][1]["error"]["content"][0]["text"] == INTERRUPTED
        assert INTERRUPTED in outline(harness.backend.calls[-1].items)[-1]

    run_virtually(body())


def test_an_agents_events_are_durable_once_it_has_flushed_them() -> None:
    async def body() -> None:
        harness = make_agent([[b"one"]])
        seen: list[Json] = []
        plain = harness.backend.stream

        async def stream(call: ModelCall, on_chunks: Any = None) -> Any:
            async for chunks in plain(call):
                yield chunks
                assert call.settle is not None
                await call.settle()
                seen.extend(harness.events())

        harness.backend.stream = stream  # type: ignore[method-assign]
        await harness.run()
        assert seen[-1]["type"] == "response.output_item.done"

    run_virtually(body())


# -- reasoning that was cut off


def test_a_run_with_tools_reasons_anew_after_reasoning_was_cut_off() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(), [REASONING, UpstreamFault("Gone.")], [REASONING, ANSWER])
        final = await harness.run()
        assert [(item["type"], item["status"]) for item in final["output"]] == [
            ("reasoning", "incomplete"),
            ("reasoning", "completed"),
            ("message", "completed"),
        ]
        assert (final["status"], texts(final)) == ("completed", "18.")
        assert outline(harness.backend.calls[-1].items) == ["Hi"]

    run_virtually(body())


def test_reasoning_that_is_always_cut_off_ends_the_run() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(), [REASONING, UpstreamFault("Gone.")])
        final = await harness.run()
        assert (final["status"], item_types(final)) == ("incomplete", ["reasoning"] * MAX_ATTEMPTS)

    run_virtually(body())


@pytest.mark.parametrize("client_call", [True, False])
def test_a_half_shown_call_or_text_ends_a_run_with_tools(client_call: bool) -> None:
    async def body() -> None:
        half = call_chunk(0, "c", "shell", '{"a') if client_call else text_chunk("Half")
        harness = ToolHarness(StubToolbox(), [[half], UpstreamFault("Gone.")], [ANSWER])
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")

    run_virtually(body())
