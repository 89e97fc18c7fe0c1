"""The judges of streams judge."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from outlive.core.events import Json
from outlive.testing import answer, chunk, finish_chunk, reasoning_chunk
from tests.dialects.playback import make_call, play
from tests.support import nesting
from tests.support.open_responses import EVENTS, RESPONSE, check_event, check_response, check_stream


def stream() -> list[Json]:
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [entry]}, "finish_reason": None}
    return play([reasoning_chunk("Hm"), chunk(choices=[choice]), finish_chunk()], make_call(top_logprobs=1))


def find(events: list[Json], type_: str) -> Json:
    return next(event for event in events if event["type"] == f"response.{type_}")


def change_metadata(events: list[Json]) -> None:
    events[-1]["response"]["metadata"] = {"a": "b"}


def lose_logprobs(events: list[Json]) -> None:
    find(events, "output_text.done")["logprobs"] = []


def change_a_part_only(events: list[Json]) -> None:
    find(events, "content_part.done")["part"]["text"] = "Hmm"


def repeat_an_item(events: list[Json]) -> None:
    events[-1]["response"]["output"] *= 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_metadata, "has another"),
        (lose_logprobs, "do not add up"),
        (change_a_part_only, "another"),
        (repeat_an_item, "not the items that were done"),
    ],
)
def test_an_invalid_stream_is_rejected_with_its_rule(change: Callable[[list[Json]], None], sentence: str) -> None:
    events = copy.deepcopy(stream())
    nesting.check(events)
    change(events)
    with pytest.raises((ValueError, AssertionError), match=sentence):
        nesting.check(events)


def open_stream() -> list[Json]:
    events = play(answer("Hel", "lo"))
    check_stream(events)
    return events


@pytest.mark.parametrize("field", RESPONSE["required"])
def test_a_response_without_a_required_field_violates_open_responses(field: str) -> None:
    response = copy.deepcopy(open_stream()[-1]["response"])
    del response[field]
    with pytest.raises(AssertionError, match=field):
        check_response(response)


def test_an_event_without_a_required_field_violates_open_responses() -> None:
    seen = 0
    for event in open_stream():
        for field in EVENTS[event["type"]]["required"]:
            broken: dict[str, Any] = {name: value for name, value in event.items() if name != field}
            with pytest.raises(AssertionError):
                check_event(broken)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("name", ["response.reasoning_text.delta", "response.cancelled", "outlive:tool.progress"])
def test_unknown_events_are_rejected_by_name(name: str) -> None:
    with pytest.raises(AssertionError, match="is not an event of Open Responses"):
        check_event({"type": name, "sequence_number": 0})


def test_an_error_must_be_followed_by_a_failure() -> None:
    error = {"type": "server_error", "code": None, "message": "oh", "param": None}
    with pytest.raises(AssertionError, match="nothing follows"):
        check_stream([{"type": "error", "sequence_number": 0, "error": error}])
