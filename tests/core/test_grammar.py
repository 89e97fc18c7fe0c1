"""The grammar's table, and its check: sound streams pass, and a broken rule is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from outlive.core.events import Json
from outlive.core.grammar import TERMINAL_STATUSES
from outlive.testing import call_chunk, finish_chunk, reasoning_chunk, refusal_chunk, text_chunk
from tests.dialects.playback import play
from tests.support.grammar import ITEMS, STATUSES, check


def stream() -> list[Json]:
    chunks = [reasoning_chunk("Hm"), text_chunk("Hel"), text_chunk("lo"), refusal_chunk("no")]
    calls = [call_chunk(0, "call_a", "f", '{"x"'), call_chunk(1, "call_b", "g", "{}"), call_chunk(0, arguments=":1}")]
    return play([*chunks, *calls, finish_chunk()])


def find(events: list[Json], type_: str, nth: int = 0) -> Json:
    return [event for event in events if event["type"] == f"response.{type_}"][nth]


def renumber(events: list[Json]) -> None:
    for number, event in enumerate(events):
        event["sequence_number"] = number


def without(type_: str, nth: int = 0) -> Callable[[list[Json]], None]:
    def change(events: list[Json]) -> None:
        events.remove(find(events, type_, nth))
        renumber(events)

    return change


def with_value(type_: str, path: str, value: object, nth: int = 0) -> Callable[[list[Json]], None]:
    def change(events: list[Json]) -> None:
        *way, last = path.split(".")
        place: Any = find(events, type_, nth)
        for name in way:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = value

    return change


def without_field(type_: str, place: str, name: str) -> Callable[[list[Json]], None]:
    def change(events: list[Json]) -> None:
        del find(events, type_)[place][name]

    return change


def swap(first: int) -> Callable[[list[Json]], None]:
    def change(events: list[Json]) -> None:
        events[first], events[first + 1] = events[first + 1], events[first]
        renumber(events)

    return change


def repeat_last(events: list[Json]) -> None:
    events.append(copy.deepcopy(events[-1]))
    renumber(events)


def skip_a_number(events: list[Json]) -> None:
    events[-1]["sequence_number"] += 1


def test_a_sound_stream_passes() -> None:
    check(stream())


def test_every_prefix_of_a_sound_stream_passes_as_unfinished() -> None:
    events = stream()
    for count in range(len(events)):
        check(events[:count], finished=False)
        with pytest.raises(ValueError, match="no terminal event"):
            check(events[:count])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (skip_a_number, "has the number"),
        (without("created"), "first event is not response.created"),
        (without("in_progress"), "before response.in_progress"),
        (swap(0), "first event is not response.created"),
        (repeat_last, "follows the terminal event"),
        (without("completed"), "no terminal event"),
        (with_value("in_progress", "response.id", "resp_2"), "id changed"),
        (with_value("in_progress", "response.status", "queued"), "its status is another"),
        (with_value("created", "response.status", "completed"), "begins as completed"),
        (with_value("created", "response.output", [{}]), "output is not empty"),
        (without("output_item.added"), "no item was added|is added at|cannot come while"),
        (with_value("output_item.added", "output_index", 5), "is added at 5"),
        (with_value("output_item.added", "item.id", "rs_1", 1), "same id"),
        (with_value("output_item.added", "item.status", "completed"), "begins as completed"),
        (with_value("output_item.added", "item.arguments", "{}", 2), "begins with arguments"),
        (without("content_part.added"), "cannot come while its reasoning"),
        (without("content_part.done"), "cannot come while its reasoning"),
        (without("output_text.done"), "cannot come while its message"),
        (without("output_item.done", 1), "were added but not done"),
        (without("function_call_arguments.done"), "cannot come while its function_call"),
        (without("output_text.delta"), "not what the deltas add up to"),
        (without("function_call_arguments.delta"), "not what the deltas add up to"),
        (with_value("output_text.delta", "item_id", "other"), "another item's"),
        (with_value("output_text.delta", "content_index", 1), "content_index is 1"),
        (with_value("content_part.done", "part.text", "other"), "part's text is another"),
        (with_value("output_item.done", "item.content.0.text", "other", 1), "not the parts that were done"),
        (with_value("output_item.done", "item.call_id", "other", 2), "call_id changed"),
        (without_field("output_item.done", "item", "summary"), "lost its summary"),
        (with_value("output_item.done", "item.arguments", "other", 2), "not what was said"),
        (with_value("output_item.done", "item.status", "in_progress"), "still in progress"),
        (with_value("completed", "response.output", []), "not the items that were done"),
        (with_value("completed", "response.status", "failed"), "its status is failed"),
    ],
)
def test_a_broken_rule_is_reported(change: Callable[[list[Json]], None], sentence: str) -> None:
    events = copy.deepcopy(stream())
    change(events)
    with pytest.raises(ValueError, match=sentence):
        check(events)


def test_a_missing_field_is_reported() -> None:
    with pytest.raises(ValueError, match="no field 'response'"):
        check([{"type": "response.created", "sequence_number": 0}])


def lifecycle(*statuses: str) -> list[Json]:
    names = ["created", *statuses[1:]]
    return [
        {"type": f"response.{name}", "sequence_number": n, "response": {"id": "resp_1", "status": status, "output": []}}
        for n, (name, status) in enumerate(zip(names, statuses, strict=True))
    ]


@pytest.mark.parametrize(
    "statuses",
    [
        ("in_progress", "in_progress", "completed"),
        ("queued", "queued", "in_progress", "incomplete"),
        ("queued", "queued", "cancelled"),
        ("queued", "failed"),
        ("queued", "in_progress", "cancelled"),
    ],
)
def test_legal_statuses_pass(statuses: tuple[str, ...]) -> None:
    check(lifecycle(*statuses))


@pytest.mark.parametrize(
    "statuses",
    [
        ("in_progress", "queued", "completed"),
        ("queued", "completed"),
        ("queued", "in_progress", "queued", "completed"),
        ("in_progress", "in_progress", "in_progress", "completed"),
        ("completed",),
    ],
)
def test_illegal_statuses_are_reported(statuses: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"cannot follow|it comes after|begins as|status is another"):
        check(lifecycle(*statuses))


def test_items_of_unknown_types_may_have_any_events() -> None:
    events = lifecycle("in_progress", "in_progress", "completed")
    item = {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}
    done = {**item, "status": "completed"}
    events[2:2] = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]
    events[-1]["response"]["output"] = [done]
    renumber(events)
    check(events)


def test_the_tables_are_closed() -> None:
    assert {status for following in STATUSES.values() for status in following} <= set(STATUSES)
    assert {status for status, following in STATUSES.items() if not following} == TERMINAL_STATUSES
    for table in ITEMS.values():
        reached = {following for state in table.values() for following in state.values()}
        assert reached - {"done"} <= set(table)


def annotated(*changes: tuple[int, object]) -> list[Json]:
    """Return a stream of a message with two annotations, added at the given indexes."""
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    notes = [{"type": "url_citation", "url": f"https://x.example/{n}"} for n in range(2)]
    part = {"type": "output_text", "text": "", "annotations": notes}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    done = {**item, "status": "completed", "content": [part]}
    events = lifecycle("in_progress", "in_progress", "completed")
    events[2:2] = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": {**part, "annotations": []}},
        *(
            {"type": "response.output_text.annotation.added", **place, "annotation_index": index, "annotation": note}
            for index, note in changes or enumerate(notes)
        ),
        {"type": "response.output_text.done", **place, "text": ""},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]
    events[-1]["response"]["output"] = [done]
    renumber(events)
    return events


def test_a_part_must_have_the_annotations_that_were_added() -> None:
    check(annotated())
    with pytest.raises(ValueError, match="not those that were added"):
        check(annotated((0, {"type": "url_citation"})))
    with pytest.raises(ValueError, match="annotation_index is 1"):
        check(annotated((1, {"type": "url_citation"})))


def test_events_of_unknown_items_must_name_their_item() -> None:
    events = lifecycle("in_progress", "in_progress")
    item = {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}
    events += [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_2"},
    ]
    renumber(events)
    with pytest.raises(ValueError, match="another item's"):
        check(events, finished=False)


def test_unknown_events_may_be_about_no_item() -> None:
    events = [*lifecycle("in_progress", "in_progress"), {"type": "response.weather.changed"}]
    renumber(events)
    check(events, finished=False)
    events[-1]["type"] = "response.output_text.delta"
    with pytest.raises(ValueError, match="output_index"):
        check(events, finished=False)
