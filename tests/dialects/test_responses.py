"""The Responses translator: streams of other servers become sound drafts."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.fold import Fold
from outlive.core.recovery import OpenText
from outlive.dialects.responses.translator import ResponsesTranslator, to_event
from outlive.ports.backend import Ending, ModelCall
from tests.dialects.playback import make_call, output, play, translate, types
from tests.support import responses_events as theirs
from tests.support.responses_events import USAGE, Item, answer, call, chunks, custom_call, message, reasoning
from tests.support.scripting import CountingIds

CITATION = {"type": "url_citation", "url": "https://example.org", "title": "t", "start_index": 0, "end_index": 5}


def run(events: list[Json], call: ModelCall | None = None) -> list[Json]:
    return play(chunks(events), call, ResponsesTranslator)


def end_of(events: list[Json]) -> Ending:
    return translate(chunks(events), make=ResponsesTranslator)[1]


def fault_of(events: list[Json]) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        end_of(events)
    return caught.value


def texts(events: list[Json]) -> list[str]:
    return [part["text"] for item in output(events) for part in item.get("content") or ()]


def without(events: list[Json], *fields: str) -> list[Json]:
    """The same events from a server that leaves fields out."""
    return [{name: value for name, value in event.items() if name not in fields} for event in events]


def leave_out(events: list[Json], *ends: str) -> list[Json]:
    """The same stream from a server that leaves events out."""
    return [event for event in events if not event["type"].endswith(ends)]


# -- complete streams


def test_a_complete_answer_passes_unchanged() -> None:
    upstream = answer(reasoning("Hm."), message("Hel", "lo", annotations=[CITATION], phase="final_answer"))
    events = run(upstream)
    assert types(events) == [event["type"].removeprefix("response.") for event in upstream]
    assert output(events) == upstream[-1]["response"]["output"]
    assert [event.get("item_id") for event in events] == [event.get("item_id") for event in upstream]


@pytest.mark.parametrize("item", theirs.HOSTED.values(), ids=theirs.HOSTED)
def test_events_of_hosted_tools_pass_unchanged(item: Item) -> None:
    upstream = answer(item, message("Done"))
    events = run(upstream)
    for sent, got in zip(upstream[2:-1], events[2:-1], strict=True):
        assert got == {key: value for key, value in sent.items() if key != "obfuscation"}
    assert output(events) == upstream[-1]["response"]["output"]


def test_unknown_items_and_events_pass_unchanged() -> None:
    upstream = answer(theirs.FUTURE, message("Done"))
    upstream.insert(2, {"type": "response.weather.changed", "sequence_number": 2, "to": {"rain": [1, 2]}})
    drafts, _ = translate(chunks(upstream), make=ResponsesTranslator)
    (changed, begun, deeper, done, *_) = [json.loads(draft.frame(0).partition(b"data: ")[2]) for draft in drafts]
    assert changed == {"type": "response.weather.changed", "sequence_number": 0, "to": {"rain": [1, 2]}}
    assert begun["item"] == upstream[3]["item"]
    assert deeper == {**upstream[4], "sequence_number": 0}
    assert done["item"] == upstream[5]["item"]


def test_unknown_fields_of_known_items_stay() -> None:
    (item,) = output(run(answer(call("{}", namespace="crm", caller={"type": "direct"}))))
    assert (item["namespace"], item["caller"]) == ("crm", {"type": "direct"})


def test_the_upstreams_lifecycle_events_are_not_passed() -> None:
    upstream = answer(message("Hi"))
    upstream[2:2] = [{"type": "response.queued", "response": theirs.response("queued", [])}]
    assert types(run(upstream)).count("in_progress") == 1
    response = run(upstream)[-1]["response"]
    assert (response["id"], response["instructions"], response["metadata"]) == ("resp_1", None, {})


@pytest.mark.parametrize("sign", ["keepalive", "ping", "heartbeat"])
def test_keep_alives_are_not_passed(sign: str) -> None:
    upstream = answer(message("a", "b"))
    upstream[5:5] = [{"type": sign, "sequence_number": 5}]
    assert texts(run(upstream)) == ["ab"]
    assert sign not in types(run(upstream))


def test_an_event_with_a_malformed_name_is_dropped() -> None:
    upstream = answer(message("a"))
    upstream[5:5] = [{"type": "response.x\n\ndata: {}"}]
    assert texts(run(upstream)) == ["a"]


def test_encrypted_content_is_sent_with_the_finished_item_only() -> None:
    events = run(answer(reasoning("Hm.", encrypted="sealed"), message("Hi")))
    assert "encrypted_content" not in events[2]["item"]
    assert output(events)[0]["encrypted_content"] == "sealed"


def test_parallel_calls_may_interleave() -> None:
    one, _ = call('{"a"', ":1}")(0)
    two, _ = call('{"b"', ":2}", id="fc_up2", call_id="call_up2")(1)
    woven = [event for pair in itertools.zip_longest(one, two) for event in pair if event is not None]
    first, second = output(run([*woven, answer()[-1]]))
    assert (first["arguments"], second["arguments"]) == ('{"a":1}', '{"b":2}')


def test_logprobs_pass() -> None:
    entry: Json = {"token": "Hi", "logprob": -0.5, "top_logprobs": [{"token": "Hi", "logprob": -0.5}]}
    whole = {**entry, "bytes": [72, 105], "top_logprobs": [{**entry["top_logprobs"][0], "bytes": [72, 105]}]}
    upstream = answer(message("Hi"))
    upstream[4]["logprobs"] = upstream[5]["logprobs"] = [entry]
    upstream[6]["part"]["logprobs"] = upstream[7]["item"]["content"][0]["logprobs"] = [whole]
    events = run(upstream)
    assert events[4]["logprobs"] == events[5]["logprobs"] == [entry]
    assert output(events)[0]["content"][0]["logprobs"] == [whole]


def test_a_refusal_passes() -> None:
    at = {"item_id": "msg_up1", "output_index": 0, "content_index": 0}
    part = {"type": "refusal", "refusal": "No."}
    begun = {"id": "msg_up1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    inner: list[Json] = [
        {"type": "response.content_part.added", **at, "part": {**part, "refusal": ""}},
        {"type": "response.refusal.delta", **at, "delta": "No."},
        {"type": "response.refusal.done", **at, "refusal": "No."},
        {"type": "response.content_part.done", **at, "part": part},
    ]
    received, _ = theirs.wrapped(0, begun, inner, {**begun, "status": "completed", "content": [part]})
    assert output(run([*received, answer()[-1]]))[0]["content"] == [part]


def test_annotations_are_renumbered_and_kept_across_a_continuation() -> None:
    upstream = answer(message("Hello", annotations=[CITATION, {**CITATION, "title": "u"}]))
    for event in upstream:
        if "annotation_index" in event:
            event["annotation_index"] += 7
    assert [note["title"] for note in output(run(upstream))[0]["content"][0]["annotations"]] == ["t", "u"]
    drafts, _ = translate(chunks(upstream), make=ResponsesTranslator)
    fold = Fold({"status": "in_progress"})
    fold.apply(drafts[:4])
    (closed,) = [item for _, item, _ in fold.open_items()]
    assert [note["title"] for note in closed["content"][0]["annotations"]] == ["t"]


# -- missing events and fields


def test_events_without_numbers_and_indices_are_placed() -> None:
    """Strip a stream to what llama.cpp sends: events with item ids, and no indices."""
    upstream = answer(message("Hel", "lo"), call('{"a"', ":1}"))
    bare = without(upstream, "sequence_number", "output_index", "content_index", "logprobs")
    for event in bare:
        if "part" in event:
            event["part"] = {
                key: value for key, value in event["part"].items() if key not in ("annotations", "logprobs")
            }
    events = run(bare)
    assert texts(events) == ["Hello"]
    assert output(events)[1]["arguments"] == '{"a":1}'


def test_events_with_changing_item_ids_are_placed_by_index() -> None:
    upstream = answer(message("Hel", "lo"))
    for n, event in enumerate(upstream):
        if "item_id" in event:
            event["item_id"] = f"msg_{n}"
    upstream[-1]["response"]["output"][0] = {**upstream[-1]["response"]["output"][0], "id": "msg_other"}
    events = run(upstream)
    assert texts(events) == ["Hello"]
    assert len(output(events)) == 1


@pytest.mark.parametrize(
    "ends",
    [
        ("content_part.added",),
        ("content_part.done",),
        ("content_part.added", "content_part.done"),
        ("output_text.done",),
        ("output_text.delta",),
        ("content_part.added", "content_part.done", "output_text.delta", "output_text.done"),
        ("output_item.added",),
        ("output_item.done",),
        ("output_item.added", "content_part.added", "content_part.done", "output_text.done", "output_item.done"),
        ("arguments.delta",),
        ("arguments.done",),
        ("arguments.delta", "arguments.done"),
        ("summary_part.added", "summary_part.done"),
        ("summary_text.delta", "summary_text.done"),
        ("input.delta", "input.done"),
    ],
    ids=" ".join,
)
def test_missing_events_are_added(ends: tuple[str, ...]) -> None:
    upstream = answer(
        reasoning("Hm.", "Well."), message("Hel", "lo"), call('{"a"', ":1}"), custom_call("ls", " -l"), WEB
    )
    events = run(leave_out(upstream, *ends))
    assert texts(events) == ["Hello"]
    thought, said, asked, custom, _ = output(events)
    assert [part["text"] for part in thought["summary"]] == ["Hm.", "Well."]
    assert (said["id"], asked["arguments"], custom["input"]) == ("msg_up1", '{"a":1}', "ls -l")
    assert types(events)[-1] == "completed"


WEB = theirs.WEB_SEARCH


def test_items_that_only_the_terminal_event_has_are_added() -> None:
    upstream = answer(reasoning("Hm."), message("Hello"), call("{}"), WEB)
    events = run([upstream[0], upstream[-1]])
    assert output(events) == upstream[-1]["response"]["output"]


def test_an_answer_that_is_no_stream_is_read() -> None:
    upstream = answer(message("Hello"), call("{}"))
    whole = json.dumps(upstream[-1]["response"]).encode()
    events = play([to_event(whole)], make=ResponsesTranslator)
    assert output(events) == upstream[-1]["response"]["output"]
    assert events[-1]["response"]["usage"] == USAGE


@pytest.mark.parametrize(
    ("whole", "words"),
    [(b"<html>", "not JSON"), (b"[]", "not a response"), (b'{"error":{"message":"No such thing"}}', "No such thing")],
)
def test_a_body_that_is_no_response_is_a_fault(whole: bytes, words: str) -> None:
    with pytest.raises(UpstreamFault, match=words):
        to_event(whole)


def test_vllms_reasoning_parts_get_their_official_names() -> None:
    events = run(answer(theirs.plain_reasoning("Hm", "m."), message("Hi")))
    assert types(events)[3:8] == [
        "content_part.added",
        *["reasoning_text.delta"] * 2,
        "reasoning_text.done",
        "content_part.done",
    ]
    assert output(events)[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]


def test_reasoning_begins_with_the_list_that_the_upstream_gives_it() -> None:
    upstream = answer(theirs.plain_reasoning("Hm", "m."), message("Hi"))
    added = next(event for event in upstream if event["type"] == "response.output_item.added")
    added["item"] = {**added["item"], "content": []}
    (begun, _) = [event["item"] for event in run(upstream) if event["type"] == "response.output_item.added"]
    assert begun["content"] == []


def test_open_responses_names_of_reasoning_are_understood() -> None:
    upstream = answer(theirs.plain_reasoning("Hm", "m."), message("Hi"))
    for event in upstream:
        event["type"] = event["type"].replace("reasoning_text", "reasoning").replace("reasoning_part", "content_part")
    assert output(run(upstream))[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]


def test_reasoning_without_events_of_parts_is_understood() -> None:
    upstream = leave_out(answer(theirs.plain_reasoning("Hm", "m."), message("Hi")), "reasoning_part.added", "part.done")
    assert output(run(upstream))[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]


def test_sent_text_stays_when_the_end_contradicts_it() -> None:
    upstream = answer(message("Hello ", "there "))
    for event in upstream:
        if event["type"] == "response.output_text.done":
            event["text"] = "Goodbye"
    upstream[-1]["response"]["output"] = []
    assert texts(run(upstream)) == ["Hello there "]


def test_a_function_without_parameters_gets_an_empty_object() -> None:
    assert output(run(answer(call())))[0]["arguments"] in ("", "{}")
    assert output(run(leave_out(answer(call()), "arguments.done")))[0]["arguments"] == "{}"


@pytest.mark.parametrize("twice", ["output_item.added", "output_text.done", "output_item.done", "content_part.added"])
def test_repeated_events_count_once(twice: str) -> None:
    upstream = [event for event in answer(message("Hi")) for _ in range(2 if event["type"].endswith(twice) else 1)]
    assert texts(run(upstream)) == ["Hi"]


def test_events_about_unknown_items_are_dropped() -> None:
    upstream = answer(message("Hi"))
    upstream[3:3] = [{"type": "response.web_search_call.searching", "item_id": "ws_none", "output_index": 7}]
    assert "web_search_call.searching" not in types(run(upstream))


def test_malformed_events_of_unknown_items_do_not_break_the_fold() -> None:
    odd = theirs.hosted(
        {"id": "zz_1", "type": "acme:text", "status": "in_progress"},
        {"id": "zz_1", "type": "acme:text", "status": "completed"},
        {"type": "response.output_text.delta", "delta": {"not": "text"}},
        {"type": "response.output_text.delta", "delta": "text"},
        {"type": "response.output_text.done", "logprobs": []},
        {"type": "response.content_part.added", "part": None},
    )
    drafts, _ = translate(chunks(answer(odd)), make=ResponsesTranslator)
    fold = Fold()
    fold.apply(drafts)
    assert fold.output == [{"id": "zz_1", "type": "acme:text", "status": "completed"}]


# -- ids


def test_duplicate_or_malformed_item_ids_are_replaced() -> None:
    for bad in ("msg_old", "", "with space", None, 7):
        item_call = make_call(items=[{"id": "msg_old", "type": "message", "role": "user", "content": []}])
        upstream = answer(message("Hi", id=bad))  # type: ignore[arg-type]
        if bad is None:
            upstream = without(upstream, "item_id")
        events = run(upstream, item_call)
        assert output(events)[0]["id"] == "msg_1"
        assert texts(events) == ["Hi"]


def test_two_items_with_one_id_are_two_items() -> None:
    first, second = output(run(answer(message("One", id="msg_0"), message("Two", id="msg_0"))))
    assert (first["id"], second["id"]) == ("msg_0", "msg_1")


def test_output_indices_continue_after_earlier_steps() -> None:
    step = ModelCall("m", make_call().request, [], first=3)
    drafts, _ = translate(chunks(answer(message("a"), call("{}"))), step, ResponsesTranslator)
    frames = [json.loads(draft.frame(0).partition(b"data: ")[2]) for draft in drafts]
    assert {frame["output_index"] for frame in frames} == {3, 4}


# -- endings


def test_the_ending_has_the_upstreams_status_usage_and_model() -> None:
    ending = end_of(answer(message("Hi"), service_tier="flex"))
    assert ending == Ending("completed", None, USAGE, "upstream-model", "flex")
    cut = end_of(answer(message("Hi"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert (cut.status, cut.reason) == ("incomplete", "max_output_tokens")


def test_items_open_at_an_incomplete_end_are_incomplete() -> None:
    upstream = answer(message("Hel", "lo"), status="incomplete", incomplete_details={"reason": "content_filter"})
    upstream[-1]["response"]["output"][0] = {**upstream[-1]["response"]["output"][0], "status": "incomplete"}
    events = run(leave_out(upstream, "output_text.done", "content_part.done", "output_item.done"))
    assert output(events)[0]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}


def test_the_status_overrides_the_name_of_the_terminal_event() -> None:
    upstream = answer(message("Hi"))
    upstream[-1]["response"] |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert end_of(upstream).status == "incomplete"


@pytest.mark.parametrize(("most", "status"), [(7, "incomplete"), (8, "completed"), (None, "completed")])
def test_an_unnumbered_stream_at_its_limit_is_incomplete(most: int | None, status: str) -> None:
    upstream, limited = answer(message("Hi")), make_call(max_output_tokens=most)
    _, numbered = translate(chunks(upstream), limited, ResponsesTranslator)
    _, bare = translate(chunks(without(upstream, "sequence_number")), limited, ResponsesTranslator)
    assert (numbered.status, bare.status) == ("completed", status)


def test_missing_usage_fields_are_added() -> None:
    ending = end_of(answer(message("Hi"), usage={"input_tokens": 3, "output_tokens": 4, "vendor": 1}))
    assert ending.usage == {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 7, "vendor": 1,
    }  # fmt: skip
    assert end_of(answer(message("Hi"), usage=None)).usage is None


def test_a_stream_without_a_terminal_event_is_a_fault() -> None:
    fault = fault_of(answer(message("Hi"))[:-1])
    assert fault.retryable
    assert "without saying that it was over" in fault.message


def test_events_after_the_terminal_event_are_dropped() -> None:
    upstream = answer(message("Hi"))
    assert texts(run([*upstream, upstream[4], upstream[2]])) == ["Hi"]


@pytest.mark.parametrize(
    ("event", "code", "retryable"),
    [
        ({"type": "error", "code": "server_error", "message": "Oh no", "param": None}, "server_error", True),
        ({"type": "error", "error": {"type": "server_error", "code": None, "message": "Oh no"}}, "server_error", True),
        ({"type": "error", "error": "Oh no"}, "server_error", True),
        ({"error": {"code": 500, "message": "Oh no", "type": "server_error"}}, "server_error", True),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Oh no"}, "rate_limit_exceeded", True),
        ({"type": "error", "code": "insufficient_quota", "message": "Oh no"}, "rate_limit_exceeded", False),
        ({"type": "response.error", "error": {"code": "context_length_exceeded", "message": "Oh no"}}, None, False),
        ({"type": "error", "code": "image_too_small", "message": "Oh no"}, "image_too_small", False),
        ({"type": "error", "code": "vector_store_timeout", "message": "Oh no"}, "vector_store_timeout", True),
        ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh no"}}}, None, True),
        (
            {"type": "response.failed", "response": {"error": {"code": "invalid_prompt", "message": "Oh no"}}},
            "invalid_prompt",
            False,
        ),
        (
            {"type": "response.completed", "response": {"status": "failed", "error": {"message": "Oh no"}}},
            "server_error",
            True,
        ),
    ],
)
def test_errors_of_every_shape_are_faults(event: Json, code: str | None, retryable: bool) -> None:
    fault = fault_of([*answer()[:2], event])
    assert "Oh no" in fault.message
    assert fault.retryable is retryable
    if code is not None:
        assert fault.code == code


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_the_usage_of_an_answer_that_broke_is_known(status: str) -> None:
    translator = ResponsesTranslator(make_call(), CountingIds())
    *before, last = chunks(answer(message("Hi"), status=status))
    for chunk in before:
        translator.feed(chunk)
    assert translator.usage() is None
    with contextlib.suppress(UpstreamFault):
        translator.feed(last)
    assert translator.usage() == USAGE


def test_an_answer_cancelled_by_the_upstream_is_a_fault() -> None:
    fault = fault_of(answer(message("Hi"), status="cancelled"))
    assert not fault.retryable


@pytest.mark.parametrize("chunk", [b"nonsense", b"[1]", b'"text"'])
def test_a_chunk_that_is_no_event_is_a_fault(chunk: bytes) -> None:
    with pytest.raises(UpstreamFault, match="not an event"):
        ResponsesTranslator(make_call(), CountingIds()).feed(chunk)


def test_half_a_character_is_replaced() -> None:
    translator = ResponsesTranslator(make_call(), CountingIds())
    for chunk in chunks(answer(message("a"))[:4]):
        translator.feed(chunk)
    bad = b'{"type":"response.output_text.delta","item_id":"msg_up1","output_index":0,"delta":"\\ud83d"}'
    (draft,) = translator.feed(bad)
    assert "\ufffd".encode() in draft.frame(0)


# -- continuation


RESUME = OpenText("msg_old", 0, 0, "one, two", 4)


def resumed(events: list[Json], **fields: Any) -> tuple[list[Json], Ending]:
    drafts, ending = translate(chunks(events), make_call(RESUME, **fields), ResponsesTranslator)
    return [json.loads(draft.frame(0).partition(b"data: ")[2]) for draft in drafts], ending


@pytest.mark.parametrize("repeats", [True, False], ids=["the whole repeats it", "the whole has only the rest"])
def test_an_interrupted_text_is_continued_in_its_item(repeats: bool) -> None:
    upstream = answer(message(", three", ", four"))
    for event in upstream:
        if event["type"] == "response.output_text.done":
            event["text"] = ("one, two" if repeats else "") + ", three, four"
    events, ending = resumed(upstream)
    assert types(events)[0] == "output_text.delta"
    assert {event.get("item_id") or event["item"]["id"] for event in events} == {"msg_old"}
    assert events[-1]["item"]["content"][0]["text"] == "one, two, three, four"
    assert ending.usage is not None
    assert (ending.usage["output_tokens"], ending.usage["total_tokens"]) == (7 + 4, 16 + 4)


def test_reasoning_before_a_continued_text_is_dropped() -> None:
    events, _ = resumed(answer(reasoning("Where was I?"), message(", three")))
    assert {event.get("item_id") or event["item"]["id"] for event in events} == {"msg_old"}
    assert events[-1]["item"]["content"][0]["text"] == "one, two, three"


def test_a_call_instead_of_a_continuation_ends_the_text() -> None:
    events, _ = resumed(answer(call("{}")))
    ends = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in ends] == [
        ("message", "completed"),
        ("function_call", "completed"),
    ]
    assert ends[0]["content"][0]["text"] == "one, two"


def test_a_whole_answer_drops_the_text_sent_before() -> None:
    upstream = answer(message("one, two, three"))
    events, _ = resumed([upstream[-1]])
    assert events[0]["delta"] == ", three"
    assert events[-1]["item"]["content"][0]["text"] == "one, two, three"


def test_an_empty_continuation_ends_the_text() -> None:
    events, _ = resumed(answer())
    assert events[-1]["item"]["content"][0]["text"] == "one, two"


# -- damaged streams

FIELDS = ["item_id", "output_index", "content_index", "delta", "text", "part", "item", "arguments", "logprobs"]
RICH = answer(
    reasoning("Hm.", "Well."), theirs.WEB_SEARCH, message("Hel", "lo", annotations=[CITATION]), call('{"a"', ":1}"),
    custom_call("ls", " -l"), theirs.plain_reasoning("Oh", ".", id="rs_up2"), message("Bye", id="msg_up2"),
)  # fmt: skip


@given(
    dropped=st.sets(st.integers(0, len(RICH) - 2)),
    repeated=st.sets(st.integers(0, len(RICH) - 2), max_size=4),
    left_out=st.sets(st.sampled_from(["item_id", "output_index", "content_index", "summary_index", "logprobs"])),
    whole_end=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_damaged_streams_become_sound_ones(
    dropped: set[int], repeated: set[int], left_out: set[str], whole_end: bool
) -> None:
    events = [
        event
        for n, event in enumerate(without(RICH, *left_out))
        for _ in range(0 if n in dropped else 2 if n in repeated else 1)
    ]
    if not whole_end:
        events[-1] = {**events[-1], "response": {**events[-1]["response"], "output": []}}
    received = run(events)
    assert received[-1]["type"] == "response.completed"
    if whole_end and not left_out:
        kinds = [item["type"] for item in output(received)]
        assert all(kinds.count(item["type"]) >= 1 for item in RICH[-1]["response"]["output"])


@given(chunk=st.dictionaries(st.sampled_from(FIELDS), st.recursive(st.none() | st.integers() | st.text(), st.lists)))
@settings(max_examples=40, deadline=None)
def test_no_event_crashes_the_translator(chunk: Json) -> None:
    for type_ in {event["type"] for event in RICH[2:-1]}:
        upstream = [*RICH[:12], {**chunk, "type": type_}, *RICH[12:]]
        drafts, _ = translate(chunks(upstream), make=ResponsesTranslator)
        fold = Fold({"status": "in_progress"})
        fold.apply(drafts)
        assert fold.output
