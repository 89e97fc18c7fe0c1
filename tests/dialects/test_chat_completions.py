"""Chunks of a Chat Completions stream become the events of the Responses API."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import Delta, Draft, Json
from outlive.core.recovery import OpenText
from outlive.dialects.chat.translator import MOST_TEMPLATE, ChatTranslator
from outlive.ports.backend import Translator
from outlive.testing import (
    answer,
    call_chunk,
    chunk,
    error_chunk,
    finish_chunk,
    reasoning_chunk,
    refusal_chunk,
    role_chunk,
    text_chunk,
    usage_chunk,
)
from tests.dialects.playback import make_call, output, play, translate, types
from tests.support.scripting import CountingIds

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SHELL = {"type": "custom", "name": "shell"}


def text_of(events: list[Json]) -> str:
    return "".join(part["text"] for item in output(events) if item["type"] == "message" for part in item["content"])


# -- text


def test_text_becomes_one_message() -> None:
    events = play(answer("Hel", "lo"))
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
    assert output(events) == [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Hello"}],
        }
    ]


def test_the_class_fulfils_the_translator_protocol() -> None:
    translator: Translator = ChatTranslator(make_call(), CountingIds())
    assert translator.feed(role_chunk()) == []


pieces = st.sampled_from(["a", " é", '"', "\\", "\n", "", "content", "id", "0", "a", "a"])
odd_ends = st.sampled_from([b"", b" ", b"x", b'"'])


@st.composite
def text_chunks(draw: st.DrawFn) -> bytes:
    """Chunks with the same or other fields around their text, written in either way, some with more than a text."""
    delta: Json = {"content": draw(pieces)}
    if draw(st.integers(0, 7)) == 0:
        more = st.sampled_from([("tool_calls", []), ("refusal", "no"), ("reasoning", "hm"), ("content", ["x"])])
        delta |= dict([draw(more)])
    if draw(st.integers(0, 7)) == 0:
        delta["tool_calls"] = [{"index": 0, "id": "call_1", "function": {"name": "shell", "arguments": "{}"}}]
    choice = {"index": draw(st.sampled_from([0, 0, 0, 1])), "delta": delta, "finish_reason": None}
    fields: Json = {
        "id": "x",
        "created": draw(st.sampled_from([1, 1, 1, 2])),
        "model": draw(pieces),
        "choices": [choice],
    }
    tight = (",", ":") if draw(st.booleans()) else None
    return json.dumps(fields, ensure_ascii=draw(st.booleans()), separators=tight).encode() + draw(odd_ends)


@given(st.lists(text_chunks(), max_size=12))
def test_a_chunk_like_the_one_before_is_read_as_any_other(chunks: list[bytes]) -> None:
    read = []
    for left in (64, 0):  # without a template, every chunk is decoded whole
        translator = ChatTranslator(make_call(tools=[SHELL]), CountingIds())
        translator._templates_left = left
        frames: list[object] = []
        with suppress(UpstreamFault):
            for each in (text_chunk("first"), *chunks, *chunks, finish_chunk()):
                frames += [draft.frame(0) for draft in translator.feed(each)]
            drafts, ending = translator.end()
            frames += [*(draft.frame(0) for draft in drafts), ending]
        read.append(frames)
    assert read[0] == read[1]


def test_only_the_text_of_chunks_that_are_alike_is_decoded() -> None:
    translator = ChatTranslator(make_call(), CountingIds())
    for text in ("a", "b"):
        translator.feed(text_chunk(text))
    assert [draft.text for draft in translator.feed(text_chunk("c")) if isinstance(draft, Delta)] == ["c"]
    with pytest.raises(UpstreamFault, match="not a chat completion chunk"):
        translator.feed(b'"c"')  # a text alone is no chunk
    translator.feed(chunk({"content": "d"}, padding="x" * MOST_TEMPLATE))
    assert translator._template is None  # a stream holds no long chunk
    for n in range(100):  # each with something else around its text, as some servers send them
        translator.feed(chunk({"content": "d"}, obfuscation="x" * (n % 7)))
    assert translator._template is None  # no more are made


def test_text_deltas_share_one_channel() -> None:
    drafts, _ = translate(answer("a", "b", "c"))
    deltas = [draft for draft in drafts if isinstance(draft, Delta)]
    assert [delta.text for delta in deltas] == ["a", "b", "c"]
    assert len({id(delta.channel) for delta in deltas}) == 1


@given(st.lists(st.text(min_size=1)), st.data())
def test_the_text_is_the_same_for_every_chunking(texts: list[str], data: st.DataObject) -> None:
    texts = [text.encode("utf-16", "replace").decode("utf-16", "replace") for text in texts]
    empties = data.draw(st.lists(st.sampled_from([role_chunk(), text_chunk(""), chunk({"content": None}), chunk()])))
    chunks = data.draw(st.permutations([*range(len(texts)), *[-1] * len(empties)]))
    rest = iter(empties)
    ordered = iter(texts)
    pieces = [next(rest) if n == -1 else text_chunk(next(ordered)) for n in chunks]
    assert text_of(play([*pieces, finish_chunk()])) == "".join(texts)


def test_a_refusal_becomes_a_part_of_the_message() -> None:
    events = play([text_chunk("Well: "), refusal_chunk("I "), refusal_chunk("won't."), finish_chunk()])
    content = output(events)[0]["content"]
    assert [part["type"] for part in content] == ["output_text", "refusal"]
    assert content[1] == {"type": "refusal", "refusal": "I won't."}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_before_the_message(field: str) -> None:
    chunks = [chunk({field: "Hm"}), chunk({field: "m."}), text_chunk("Yes."), finish_chunk()]
    thought, message = output(play(chunks))
    assert thought == {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hmm."}],
    }
    assert message["content"][0]["text"] == "Yes."


def test_reasoning_ends_with_encrypted_content_where_that_was_asked_for() -> None:
    """Without it, clients that keep their history themselves drop the reasoning, or stop."""
    call = make_call(include=["reasoning.encrypted_content"])
    events = play([reasoning_chunk("Hm"), reasoning_chunk("m. ü"), text_chunk("Yes."), finish_chunk()], call)
    thought, message = output(events)
    assert b64decode(thought["encrypted_content"].removeprefix("outlive:plain:")).decode() == "Hmm. ü"
    assert "encrypted_content" not in message
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert "encrypted_content" not in added


@pytest.mark.parametrize("wish", [{"summary": "auto"}, {"generate_summary": "concise"}])
def test_requested_summaries_carry_the_reasoning(wish: Json) -> None:
    """Most clients show no other reasoning."""
    call = make_call(reasoning=wish, include=["reasoning.encrypted_content"])
    events = play([reasoning_chunk("Hm"), reasoning_chunk("m."), text_chunk("Yes."), finish_chunk()], call)
    thought, message = output(events)
    assert thought["summary"] == [{"type": "summary_text", "text": "Hmm."}] and "content" not in thought
    assert b64decode(thought["encrypted_content"].removeprefix("outlive:plain:")) == b"Hmm."
    assert message["content"][0]["text"] == "Yes."
    assert types(events)[2:9] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]


def test_reasoning_under_both_names_counts_once() -> None:
    both = chunk({"reasoning": "Hm", "reasoning_content": "Hm", "reasoning_details": [{"text": "Hm"}]})
    assert output(play([both, finish_chunk()]))[0]["content"][0]["text"] == "Hm"


def test_reasoning_and_text_in_one_chunk_are_two_items() -> None:
    items = output(play([chunk({"reasoning": "Hm", "content": "Yes"}), finish_chunk()]))
    assert [item["type"] for item in items] == ["reasoning", "message"]


def test_thinking_parts_become_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    chunks = [chunk({"content": [thinking]}), chunk({"content": [{"type": "text", "text": "Yes"}]}), finish_chunk()]
    thought, message = output(play(chunks))
    assert (thought["content"][0]["text"], message["content"][0]["text"]) == ("Hm", "Yes")


def test_logprobs_are_in_deltas_and_in_the_part() -> None:
    entry = {"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "Hi", "logprob": -0.5}]}
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [entry]}, "finish_reason": None}
    events = play([chunk(choices=[choice]), text_chunk("!"), finish_chunk()], make_call(top_logprobs=1))
    token = {"token": "Hi", "bytes": [72, 105], "logprob": -0.5}
    entry = {**token, "top_logprobs": [token]}
    assert [event["logprobs"] for event in events if event["type"].endswith("text.delta")] == [[entry], []]
    assert output(events)[0]["content"][0]["logprobs"] == [entry]


def test_only_the_first_choice_counts() -> None:
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    mixed = chunk(choices=[other, {"index": 0, "delta": {"content": "!"}, "finish_reason": None}])
    events = play([text_chunk("yes"), chunk(choices=[other]), mixed, finish_chunk()])
    assert text_of(events) == "yes!"
    assert events[-1]["type"] == "response.completed"


def test_a_character_cut_in_half_does_not_end_the_run() -> None:
    halves = [text_chunk("a?").replace(b"?", rb"\ud83d"), text_chunk("b?").replace(b"?", b"\xff")]
    assert text_of(play([*halves, finish_chunk()])) == "a\ufffdb\ufffd"


# -- calls


def test_a_call_is_streamed() -> None:
    chunks = [
        call_chunk(0, "call_a", "weather", ""),
        call_chunk(0, arguments='{"city"'),
        call_chunk(0, arguments=':"X"}'),
    ]
    events = play([*chunks, finish_chunk("tool_calls")], make_call(tools=[WEATHER]))
    assert output(events) == [
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "weather",
            "arguments": '{"city":"X"}',
        }
    ]
    assert types(events)[2:5] == ["output_item.added", *["function_call_arguments.delta"] * 2]


def calls_of(chunks: list[bytes], **fields: Any) -> list[tuple[str, str, Any]]:
    items = output(play([*chunks, finish_chunk("tool_calls")], make_call(**fields)))
    return [(item["call_id"], item["name"], item.get("arguments", item.get("input"))) for item in items]


A, B = ("call_a", "f", '{"x":1}'), ("call_b", "g", '{"y":2}')


CALLS = [
    pytest.param(
        [
            call_chunk(0, "call_a", "f", ""),
            call_chunk(1, "call_b", "g", ""),
            call_chunk(0, arguments='{"x"'),
            call_chunk(1, arguments='{"y"'),
            call_chunk(0, arguments=":1}"),
            call_chunk(1, arguments=":2}"),
        ],
        id="interleaved",
    ),
    pytest.param(
        [
            chunk(
                {
                    "tool_calls": [
                        {"index": 0, "id": "call_a", "function": {"name": "f", "arguments": '{"x":1}'}},
                        {"index": 1, "id": "call_b", "function": {"name": "g", "arguments": '{"y":2}'}},
                    ]
                }
            )
        ],
        id="whole in one chunk",
    ),
    pytest.param(
        [
            call_chunk(None, "call_a", "f", '{"x"'),
            call_chunk(None, arguments=":1}"),
            call_chunk(None, "call_b", "g", '{"y":2}'),
        ],
        id="without index",
    ),
    pytest.param([call_chunk(0, *A), call_chunk(0, *B)], id="every index zero"),
    pytest.param(
        [call_chunk(0, "call_a", "f", '{"x"'), call_chunk(0, "call_a", "f", ":1}"), call_chunk(1, *B)],
        id="repeated id and name",
    ),
    pytest.param(
        [call_chunk(0, "call_a", arguments='{"x"'), call_chunk(0, name="f", arguments=":1}"), call_chunk(1, *B)],
        id="name later",
    ),
    pytest.param(
        [call_chunk(0, "call_a", "f", {"x": 1}), call_chunk(1, "call_b", "g", {"y": 2})], id="arguments as objects"
    ),
]


@pytest.mark.parametrize("chunks", CALLS)
def test_fragments_are_assigned_to_their_calls(chunks: list[bytes]) -> None:
    assert calls_of(chunks) == [A, B]


@pytest.mark.parametrize("chunks", CALLS)
def test_calls_are_open_one_at_a_time(chunks: list[bytes]) -> None:
    """Some clients forget a call when another is added before it is done."""
    events = play([*chunks, finish_chunk("tool_calls")])
    marks = [name for name in types(events) if name.startswith("output_item")]
    assert marks == ["output_item.added", "output_item.done"] * 2


def test_a_waiting_call_is_opened_with_all_its_pieces() -> None:
    """Pieces of the second call that come while the first is unfinished are sent when the first is whole."""
    translator = ChatTranslator(make_call(), CountingIds())
    translator.feed(call_chunk(0, "call_a", "f", '{"x"'))
    assert translator.feed(call_chunk(1, "call_b", "g", '{"y"')) == []
    freed = [draft.type for draft in translator.feed(call_chunk(0, arguments=":1}"))]
    assert freed == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
    ]
    assert [draft.type for draft in translator.feed(call_chunk(1, arguments=":2}"))] == [freed[0]]


def test_fragments_for_an_ended_call_are_dropped() -> None:
    chunks = [call_chunk(0, *A), call_chunk(1, *B), call_chunk(0, arguments=" "), call_chunk(0, arguments='{"x":1}')]
    assert calls_of(chunks) == [A, B]


def test_calls_without_index_and_id_get_ids() -> None:
    chunks = [
        call_chunk(None, name="f", arguments='{"x"'),
        call_chunk(None, name="f", arguments=":1}"),
        call_chunk(None, name="f", arguments="{}"),
    ]
    assert calls_of(chunks) == [("call_1", "f", '{"x":1}'), ("call_3", "f", "{}")]


def test_two_calls_never_share_an_id() -> None:
    calls = calls_of([call_chunk(0, "call_a", "f", "{}"), call_chunk(1, "call_a", "g", "{}")])
    assert len({call_id for call_id, _, _ in calls}) == 2


def test_the_deprecated_function_call_field_becomes_a_call() -> None:
    first = chunk({"function_call": {"name": "f", "arguments": '{"x"'}})
    calls = calls_of([first, chunk({"function_call": {"arguments": ":1}"}})])
    assert calls == [("call_1", "f", '{"x":1}')]


def test_a_function_without_arguments_gets_an_empty_object() -> None:
    assert calls_of([call_chunk(0, "call_a", "f")]) == [("call_a", "f", "{}")]


def test_text_before_a_call_is_closed_when_the_call_starts() -> None:
    events = play([text_chunk("Let me see."), call_chunk(0, *A), finish_chunk("tool_calls")])
    names = types(events)
    assert names.index("output_item.done") < len(names) - 1 - names[::-1].index("output_item.added")
    assert [item["type"] for item in output(events)] == ["message", "function_call"]


def test_text_after_a_call_loses_nothing() -> None:
    chunks = [call_chunk(0, "call_a", "f", '{"x"'), text_chunk("hm"), call_chunk(0, arguments=":1}"), text_chunk("!")]
    call, message = output(play([*chunks, finish_chunk()]))
    assert (call["arguments"], message["content"][0]["text"]) == ('{"x":1}', "hm!")


def test_a_custom_tool_gets_its_input_at_the_end() -> None:
    pieces = [call_chunk(0, "call_a", "shell", '{"inp'), call_chunk(0, arguments='ut":"ls\\n"}')]
    events = play([*pieces, finish_chunk("tool_calls")], make_call(tools=[SHELL]))
    assert types(events)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    (item,) = output(events)
    assert (item["type"], item["id"], item["input"], item["status"]) == (
        "custom_tool_call",
        "ctc_1",
        "ls\n",
        "completed",
    )


def test_a_custom_tools_unwrapped_text_is_its_input() -> None:
    assert calls_of([call_chunk(0, "call_a", "shell", "ls -l")], tools=[SHELL]) == [("call_a", "shell", "ls -l")]


def test_a_call_without_a_name_is_a_fault() -> None:
    with pytest.raises(UpstreamFault, match="without the function's name"):
        translate([call_chunk(0, "call_a", arguments="{}"), finish_chunk("tool_calls")])
    with pytest.raises(UpstreamFault, match="without the function's name"):
        translate([chunk({"function_call": {}}), finish_chunk("stop")])


@pytest.mark.parametrize("field", ["tool_calls", "function_call", "refusal"])
@pytest.mark.parametrize("value", [0, 7, False, True, "", [], [7]])
def test_fields_of_odd_types_are_skipped(field: str, value: object) -> None:
    assert play([chunk({"content": "a", field: value}), finish_chunk()]) == play([text_chunk("a"), finish_chunk()])


fragments = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, 2, None]),
        "id": st.sampled_from(["call_a", "call_b", "", None]),
        "function": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["f", "shell", "", None]),
                "arguments": st.sampled_from(["{", "}", '{"x":1}', "", None, {"x": 1}]),
            },
        ),
    },
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["a", "", None, 3, [{"type": "text", "text": "p"}]]),
        "reasoning": st.sampled_from(["r", "", None]),
        "refusal": st.sampled_from(["no", "", None]),
        "tool_calls": st.one_of(st.none(), st.lists(fragments, max_size=3)),
    },
)


@given(st.lists(deltas, max_size=12), st.sampled_from(["stop", "length", "content_filter", "tool_calls", "odd"]))
def test_every_stream_of_deltas_is_sound(given_deltas: list[Json], finish: str) -> None:
    chunks = [chunk(delta) for delta in given_deltas]
    with suppress(UpstreamFault):  # some of them never name their function
        play([*chunks, finish_chunk(finish), usage_chunk()], make_call(tools=[SHELL]))


@given(st.lists(deltas, max_size=8))
def test_a_prefix_of_the_chunks_gives_a_prefix_of_the_drafts(given_deltas: list[Json]) -> None:
    def frames(count: int) -> list[bytes]:
        translator = ChatTranslator(make_call(tools=[SHELL]), CountingIds())
        return [draft.frame(0) for delta in given_deltas[:count] for draft in translator.feed(chunk(delta))]

    whole = frames(len(given_deltas))
    for count in range(len(given_deltas)):
        part = frames(count)
        assert whole[: len(part)] == part


# -- endings


def test_usage_is_translated_to_the_responses_shape() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    _, ending = translate([text_chunk("a"), finish_chunk(), usage_chunk(10, 5, **details)])
    assert ending.usage == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
    assert ending.model == "scripted"


def test_chunks_with_usage_keep_their_text() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    chunks = [chunk({"content": text}, usage=usage) for text in "abc"]
    assert text_of(play([*chunks, finish_chunk()])) == "abc"


def test_an_answer_without_usage_has_none() -> None:
    assert translate([text_chunk("a"), finish_chunk()])[1].usage is None


@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_reached_its_limit_is_incomplete(reason: str, why: str) -> None:
    events = play([text_chunk("Once upon"), finish_chunk(reason)])
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": why}
    assert output(events)[0]["status"] == "incomplete"


def test_only_the_truncated_call_is_incomplete() -> None:
    items = output(play([call_chunk(0, *A), call_chunk(1, "call_b", "g", '{"y'), finish_chunk("length")]))
    assert [item["status"] for item in items] == ["completed", "incomplete"]


def test_a_truncated_custom_call_has_no_input() -> None:
    (item,) = output(
        play([call_chunk(0, "call_a", "shell", '{"inp'), finish_chunk("length")], make_call(tools=[SHELL]))
    )
    assert (item["status"], item["input"]) == ("incomplete", "")


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "something_new"])
def test_other_finish_reasons_complete_the_answer(reason: str) -> None:
    assert translate([text_chunk("a"), finish_chunk(reason)])[1].status == "completed"


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = output(play([role_chunk(), finish_chunk()]))
    assert item["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": ""}]


def test_a_stream_without_a_finish_is_a_fault() -> None:
    with pytest.raises(UpstreamFault, match="without a finish") as caught:
        translate([text_chunk("a")])
    assert caught.value.retryable


def test_a_malformed_chunk_is_a_fault() -> None:
    for junk in (b"junk", b"[]", b'{"choices": 3}', b'{"choices": [{"delta": "a"}]}', b"[" * 100_000):
        with pytest.raises(UpstreamFault, match="not a chat completion chunk"):
            translate([junk])


@pytest.mark.parametrize(
    ("fields", "code", "retryable"),
    [
        ({"code": "rate_limit_exceeded"}, "rate_limit_exceeded", True),
        ({"type": "insufficient_quota"}, "rate_limit_exceeded", False),
        ({"code": 429}, "rate_limit_exceeded", True),
        ({"code": "context_length_exceeded"}, "invalid_prompt", False),
        ({"type": "BadRequestError", "code": 400}, "invalid_prompt", False),
        ({"type": "invalid_request_error"}, "invalid_prompt", False),
        ({"code": 502}, "server_error", True),
        ({"code": "invalid_api_key"}, "server_error", False),
        ({}, "server_error", True),
    ],
)
def test_an_error_in_the_stream_is_a_fault_by_its_cause(fields: Json, code: str, retryable: bool) -> None:
    with pytest.raises(UpstreamFault, match="too much") as caught:
        translate([text_chunk("a"), error_chunk("too much", **fields)])
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


def test_errors_without_an_envelope_are_faults() -> None:
    shapes = [b'{"error":"oh"}', b'{"object":"error","message":"oh","code":500}', chunk({"content": ""}, "error")]
    for shape in shapes:
        with pytest.raises(UpstreamFault, match=r"oh|gave up"):
            translate([shape])


# -- continuation

SO_FAR = OpenText("msg_0", 1, 0, "Once upon", 2)


def test_a_resumed_text_is_continued_in_its_item() -> None:
    drafts, ending = translate(
        [text_chunk(" a"), text_chunk(" time"), finish_chunk(), usage_chunk(9, 2)], make_call(SO_FAR)
    )
    assert [draft.type.removeprefix("response.") for draft in drafts] == [
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert json.loads(drafts[0].frame(7).split(b"data: ")[1]) == {
        "type": "response.output_text.delta",
        "sequence_number": 7,
        "item_id": "msg_0",
        "output_index": 1,
        "content_index": 0,
        "delta": " a",
        "logprobs": [],
    }
    last = drafts[-1]
    assert isinstance(last, Draft)
    assert last.fields["output_index"] == 1
    assert last.fields["item"]["content"][0]["text"] == "Once upon a time"
    assert ending.usage is not None
    assert (ending.usage["output_tokens"], ending.usage["total_tokens"]) == (4, 13)


def test_reasoning_before_a_resumed_text_is_dropped() -> None:
    drafts, _ = translate([reasoning_chunk("Hm"), text_chunk(" a"), finish_chunk()], make_call(SO_FAR))
    assert [draft.type for draft in drafts if draft.type.endswith("item.done")] == ["response.output_item.done"]
    assert "reasoning" not in " ".join(draft.type for draft in drafts)


def test_a_call_after_a_resumed_text_comes_next() -> None:
    drafts, _ = translate([text_chunk("!"), call_chunk(0, *A), finish_chunk()], make_call(SO_FAR))
    added = [
        draft.fields["output_index"] for draft in drafts if isinstance(draft, Draft) and draft.type.endswith(".added")
    ]
    assert added == [2]
