"""Events of Anthropic's Messages API become the events of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import Delta, Draft, Json
from outlive.core.recovery import OpenText
from outlive.dialects.anthropic.translator import AnthropicTranslator, to_events
from outlive.ports.backend import Ending, ModelCall, Translator
from tests.dialects.playback import make_call, output, translate, types
from tests.dialects.playback import play as play_any
from tests.support.anthropic_upstream import PING, end, event, payload, redacted, say, start, text, thought, use
from tests.support.scripting import CountingIds
from tests.support.upstream import Step

SHELL = {"type": "custom", "name": "shell"}


def play(steps: list[Step], call: ModelCall | None = None) -> list[Json]:
    return play_any([payload(step) for step in steps], call, AnthropicTranslator)


def ending_of(steps: list[Step], call: ModelCall | None = None) -> Ending:
    return translate([payload(step) for step in steps], call, AnthropicTranslator)[1]


def test_the_class_fulfils_the_translator_protocol() -> None:
    translator: Translator = AnthropicTranslator(make_call(), CountingIds())
    assert translator.feed(payload(PING)) == []


# -- text


def test_text_becomes_one_message() -> None:
    events = play(say("Hel", "lo"))
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert output(events)[0]["content"][0]["text"] == "Hello"


def test_text_deltas_share_one_channel() -> None:
    drafts, _ = translate([payload(step) for step in say("a", "b", "c")], None, AnthropicTranslator)
    deltas = [draft for draft in drafts if isinstance(draft, Delta)]
    assert [delta.text for delta in deltas] == ["a", "b", "c"]
    assert len({id(delta.channel) for delta in deltas}) == 1


def test_items_are_opened_with_their_first_content() -> None:
    translator = AnthropicTranslator(make_call(), CountingIds())
    quiet = [start(), PING, event("content_block_start", index=0, content_block={"type": "text", "text": ""})]
    quiet += [event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})]
    quiet += [event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": ""})]
    assert [draft for step in quiet for draft in translator.feed(payload(step))] == []


@given(st.lists(st.text(min_size=1)), st.data())
def test_the_text_is_the_same_for_every_chunking(texts: list[str], data: st.DataObject) -> None:
    texts = [piece.encode("utf-16", "replace").decode("utf-16", "replace") for piece in texts]
    blocks = data.draw(st.lists(st.integers(0, len(texts)), max_size=3).map(sorted))
    steps: list[Step] = [start()]
    for index, (first, last) in enumerate(zip([0, *blocks], [*blocks, len(texts)], strict=True)):
        steps += [*text(index, *texts[first:last]), PING]
    events = play([*steps, *end()])
    said = "".join(part["text"] for item in output(events) for part in item["content"])
    assert said == "".join(texts)


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = output(play([start(), *end()]))
    assert item["content"][0]["text"] == ""


def test_a_character_cut_in_half_does_not_end_the_run() -> None:
    broken = payload(text(0, "a?")[1]).replace(b"?", rb"\ud83d")
    events = play_any([payload(start()), broken, *map(payload, end())], None, AnthropicTranslator)
    assert output(events)[0]["content"][0]["text"] == "a\ufffd"


# -- thinking


def test_a_thought_becomes_a_sealed_summary() -> None:
    item, message = output(play([start(), *thought(0, "Let me ", "see."), *text(1, "Yes."), *end()]))
    assert item == {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "Let me see."}],
        "encrypted_content": "anthropic:signature:sig-1",
    }
    assert message["content"][0]["text"] == "Yes."


def test_a_thought_without_text_has_only_its_seal() -> None:
    events = play([start(), *thought(0), *text(1, "Yes."), *end()])
    assert output(events)[0]["summary"] == []
    assert output(events)[0]["encrypted_content"] == "anthropic:signature:sig-1"
    assert types(events)[2:4] == ["output_item.added", "output_item.done"]


def test_a_redacted_thought_keeps_its_data() -> None:
    item = output(play([start(), *redacted(0, "EmwK"), *text(1, "Yes."), *end()]))[0]
    assert (item["type"], item["summary"], item["encrypted_content"]) == ("reasoning", [], "anthropic:redacted:EmwK")


def test_a_thought_without_a_signature_has_no_seal() -> None:
    item = output(play([start(), *thought(0, "Hm", signature=None), *text(1, "Yes."), *end()]))[0]
    assert "encrypted_content" not in item


def test_thoughts_between_calls_keep_their_order() -> None:
    steps = [start(), *thought(0, "a"), *use(1, "toolu_1", "f", "{}"), *thought(2, "b"), *use(3, "toolu_2", "g", "{}")]
    items = output(play([*steps, *end("tool_use")]))
    assert [item["type"] for item in items] == ["reasoning", "function_call"] * 2


def test_a_truncated_thought_is_incomplete() -> None:
    cut = [start(), *thought(0, "Let me", signature=None), *end("max_tokens")]
    (item,) = output(play(cut))
    assert item["status"] == "incomplete"


# -- calls


def test_a_call_is_streamed() -> None:
    events = play([start(), *use(0, "toolu_1", "weather", "", '{"city"', ':"X"}'), *end("tool_use")])
    assert output(events) == [
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "toolu_1",
            "name": "weather",
            "arguments": '{"city":"X"}',
        }
    ]
    assert types(events)[2:5] == ["output_item.added", *["function_call_arguments.delta"] * 2]


def test_a_call_ends_with_its_block() -> None:
    translator = AnthropicTranslator(make_call(), CountingIds())
    drafts = [draft for step in use(0, "toolu_1", "f", "{}") for draft in translator.feed(payload(step))]
    assert drafts[-1].type == "response.output_item.done"


def test_one_call_is_open_at_a_time() -> None:
    events = play([start(), *use(0, "toolu_1", "f"), *use(1, "toolu_2", "g", "{}"), *end("tool_use")])
    assert [item["arguments"] for item in output(events)] == ["{}", "{}"]
    names = [name for name in types(events) if name.startswith("output_item")]
    assert names == ["output_item.added", "output_item.done"] * 2


def test_overlapping_call_blocks_are_separate_calls() -> None:
    def piece(index: int, partial: str) -> Step:
        delta = {"type": "input_json_delta", "partial_json": partial}
        return event("content_block_delta", index=index, delta=delta)

    first, second = use(0, "toolu_1", "f"), use(1, "toolu_2", "g")
    steps = [first[0], second[0], piece(0, '{"x"'), piece(1, '{"y"'), piece(0, ":1}"), piece(1, ":2}")]
    items = output(play([start(), *steps, first[-1], second[-1], *end("tool_use")]))
    assert [item["arguments"] for item in items] == ['{"x":1}', '{"y":2}']


def test_a_block_that_ends_twice_ends_its_call_once() -> None:
    first = use(0, "toolu_1", "f")
    items = output(play([start(), *first, first[-1], *use(1, "toolu_2", "g", "{}"), *end("tool_use")]))
    assert [(item["call_id"], item["status"]) for item in items] == [("toolu_1", "completed"), ("toolu_2", "completed")]


def test_a_block_that_begins_again_is_another_call() -> None:
    begun, again = use(0, "toolu_1", "f", '{"a"'), use(0, "toolu_2", "g", "{}")
    items = output(play([start(), *begun[:-1], *again, *end("tool_use")]))
    assert [(item["call_id"], item["status"]) for item in items] == [("toolu_1", "completed"), ("toolu_2", "completed")]


def test_a_call_with_its_input_in_the_block_start_has_arguments() -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
    steps: list[Step] = [
        event("content_block_start", index=0, content_block=block),
        event("content_block_stop", index=0),
    ]
    (item,) = output(play([start(), *steps, *end("tool_use")]))
    assert json.loads(item["arguments"]) == {"x": 1}


def test_a_truncated_call_is_incomplete() -> None:
    whole, cut = output(
        play([start(), *use(0, "toolu_1", "f", "{}"), *use(1, "toolu_2", "f", '{"a'), *end("max_tokens")])
    )
    assert (whole["status"], cut["status"], cut["arguments"]) == ("completed", "incomplete", '{"a')


def test_a_custom_tool_gets_its_input() -> None:
    events = play([start(), *use(0, "toolu_1", "shell", '{"input":"ls"}'), *end("tool_use")], make_call(tools=[SHELL]))
    (item,) = output(events)
    assert (item["type"], item["input"], item["id"]) == ("custom_tool_call", "ls", "ctc_1")


# -- endings


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("end_turn", "completed", None),
        ("stop_sequence", "completed", None),
        ("tool_use", "completed", None),
        ("max_tokens", "incomplete", "max_output_tokens"),
        ("model_context_window_exceeded", "incomplete", "max_output_tokens"),
        ("refusal", "incomplete", "content_filter"),
        ("pause_turn", "incomplete", "interrupted"),
        ("something_new", "completed", None),
    ],
)
def test_stop_reasons_map_to_statuses(reason: str, status: str, why: str | None) -> None:
    ending = ending_of([start(), *text(0, "a"), *end(reason)])
    assert (ending.status, ending.reason) == (status, why)


def test_a_refusals_explanation_is_sent() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "This could do harm."}
    events = play([start(), *text(0, "Well, "), *end("refusal", stop_details=details)])
    (item,) = output(events)
    assert item["status"] == "incomplete"
    assert item["content"][1] == {"type": "refusal", "refusal": "This could do harm."}
    assert events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}


def test_usage_is_known_from_the_first_event_on() -> None:
    translator = AnthropicTranslator(make_call(), CountingIds())
    assert translator.usage() is None
    translator.feed(payload(start(input_tokens=10, output_tokens=1)))
    usage = translator.usage()
    assert usage is not None
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 1, 11)


def test_usage_includes_cache_reads_and_writes() -> None:
    begin = start(input_tokens=10, cache_read_input_tokens=100, cache_creation_input_tokens=20)
    details = {"thinking_tokens": 30}
    ending = ending_of([begin, *text(0, "a"), *end(output_tokens=40, output_tokens_details=details)])
    assert ending.usage == {
        "input_tokens": 130,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
        "output_tokens": 40,
        "output_tokens_details": {"reasoning_tokens": 30},
        "total_tokens": 170,
    }
    assert (ending.model, ending.service_tier) == ("claude-test-1", "default")


def test_a_stream_without_a_stop_reason_is_a_fault() -> None:
    with pytest.raises(UpstreamFault, match="without a finish"):
        ending_of([start(), *text(0, "a")])


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("overloaded_error", "server_error", True),
        ("api_error", "server_error", True),
        ("timeout_error", "server_error", True),
        ("rate_limit_error", "rate_limit_exceeded", True),
        ("invalid_request_error", "invalid_prompt", False),
        ("billing_error", "rate_limit_exceeded", False),
        ("authentication_error", "server_error", False),
    ],
)
def test_an_error_in_the_stream_is_a_fault(kind: str, code: str, retryable: bool) -> None:
    error = event("error", error={"type": kind, "message": "oh"})
    with pytest.raises(UpstreamFault, match="oh") as caught:
        ending_of([start(), *text(0, "a"), error])
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


@pytest.mark.parametrize("chunk", [b"{", b"[]", b'"x"', b'{"delta": 5}'])
def test_a_malformed_event_is_a_fault(chunk: bytes) -> None:
    with pytest.raises(UpstreamFault, match="not an event"):
        AnthropicTranslator(make_call(), CountingIds()).feed(chunk)


def test_unknown_events_are_ignored() -> None:
    newer: list[Step] = [
        event(
            "content_block_start", index=0, content_block={"type": "server_tool_use", "id": "s", "name": "web_search"}
        ),
        event("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {}}),
        event("content_block_stop", index=0),
        event("shiny", value=1),
    ]
    (item,) = output(play([start(), *newer, *text(1, "Yes."), *end()]))
    assert item["content"][0]["text"] == "Yes."


# -- continuation


OPEN = OpenText("msg_9", 1, 0, "one, two, ", 3)


def resumed(text_so_far: str, *pieces: str) -> str:
    call = make_call(OpenText("msg_9", 1, 0, text_so_far, 3))
    drafts, ending = translate([payload(step) for step in say(*pieces)], call, AnthropicTranslator)
    done = next(draft for draft in drafts if draft.type == "response.output_text.done")
    assert isinstance(done, Draft) and done.fields["item_id"] == "msg_9" and done.fields["output_index"] == 1
    grown = "".join(draft.text for draft in drafts if isinstance(draft, Delta))
    assert done.fields["text"] == text_so_far + grown
    assert ending.usage is not None and ending.usage["output_tokens"] == 10
    return grown


@pytest.mark.parametrize(
    ("so_far", "pieces", "grown"),
    [
        ("one, two,", [" three"], " three"),
        ("one, two, ", [" three"], "three"),
        ("one, two, ", ["three"], "three"),
        ("one\n\n", ["\n", "\n", "two"], "two"),
        ("one\n\n", ["\n", " two"], " two"),
        ("one\n", ["\n\ntwo"], "\ntwo"),
        ("one ", [" ", " two"], " two"),
    ],
)
def test_white_space_between_attempts_is_sent_once(so_far: str, pieces: list[str], grown: str) -> None:
    assert resumed(so_far, *pieces) == grown


def test_reasoning_before_a_continued_text_is_dropped() -> None:
    steps = [start(), *thought(0, "Hm"), *redacted(1, "x"), *text(2, "three"), *end()]
    drafts, _ = translate([payload(step) for step in steps], make_call(OPEN), AnthropicTranslator)
    assert {draft.type for draft in drafts} & {"response.output_item.added"} == set()


# -- whole answers


def test_an_answer_that_is_no_stream_gives_the_same_items() -> None:
    message: dict[str, Any] = {
        "type": "message",
        "model": "claude-test-1",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": "sig-1"},
            {"type": "text", "text": "Yes."},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }
    events = play_any(to_events(json.dumps(message).encode()), None, AnthropicTranslator)
    streamed = [start(), *thought(0, "Hm"), *text(1, "Yes."), *use(2, "toolu_1", "f", '{"x":1}'), *end("tool_use")]
    assert output(events) == output(play(streamed))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [(b"<html>", "not JSON"), (b"{}", "not a message"), (b'{"error": {"type": "api_error", "message": "oh"}}', "oh")],
)
def test_a_body_that_is_no_message_is_a_fault(raw: bytes, sentence: str) -> None:
    with pytest.raises(UpstreamFault, match=sentence):
        to_events(raw)
