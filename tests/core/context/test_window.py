"""Estimates grow with the text that a model reads, and ignore the rest. Truncation drops the oldest items, keeps
those that must stay, and separates no call from its output."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.context.assemble import assemble
from outlive.core.context.window import (
    PER_IMAGE,
    PER_IMAGE_LOW,
    PER_ITEM,
    estimate_item,
    estimate_request,
    is_user_message,
    tail_of,
    truncate,
)
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse


def message(*content: Json) -> Json:
    return {"id": "msg_1", "type": "message", "role": "user", "status": "completed", "content": list(content)}


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


def request(**fields: Any) -> CreateResponse:
    return CreateResponse(model="m", input=[], **fields)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ([], 0),
        ([text("")], 0),
        ([text("four")], 1),
        ([text("eight ch"), text("five!")], 2 + 2),
        ([text("日本")], 2),
        ([{"type": "input_image", "image_url": "data:" + "x" * 100_000}], PER_IMAGE),
        ([{"type": "input_image", "image_url": "data:", "detail": "low"}], PER_IMAGE_LOW),
        ([{"type": "input_file", "file_data": "x" * 1600, "filename": "a.pdf"}], PER_ITEM + 100),
        ([{"type": "input_audio", "input_audio": {"data": "x" * 1600, "format": "wav"}}], PER_ITEM + 100),
        ([{"type": "output_text", "text": "four", "annotations": [], "logprobs": [{"token": "x" * 99}]}], 1),
        ([{"type": "refusal", "refusal": "no"}], 4),
    ],
)
def test_a_message_counts_by_its_content(content: list[Json], tokens: int) -> None:
    assert estimate_item(message(*content)) == PER_ITEM + tokens


def test_calls_outputs_and_reasoning_count_by_their_text() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c" * 50, "name": "look", "arguments": "{}      "}
    assert estimate_item(call) == PER_ITEM + 1 + 2
    assert estimate_item({"type": "function_call_output", "call_id": "c", "output": "4242"}) == PER_ITEM + 1
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hmmm"}],
        "encrypted_content": "x" * 99,
    }
    assert estimate_item(thought) == PER_ITEM + 1


def test_everything_that_the_model_reads_counts() -> None:
    bare = estimate_request(request(), [message(text("four"))])
    assert bare == PER_ITEM + 1
    assert estimate_request(request(instructions="Be kind."), []) == PER_ITEM + 2
    tool = {"type": "function", "name": "f", "description": "d" * 40, "parameters": {}, "strict": True}
    assert estimate_request(request(tools=[tool]), []) > 10
    schema = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {}}}}
    assert estimate_request(request(text=schema), []) > 5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["output", "action", "tools", "x"]), json_values))
def test_every_item_has_an_estimate(fields: Json) -> None:
    assert estimate_item({"type": "odd", **fields}) >= PER_ITEM


# -- truncation


def say(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def call(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "42"}


THOUGHT: Json = {"type": "reasoning", "summary": []}

FIRST = [say("user", "one"), THOUGHT, call("a"), call("b"), output("a"), output("b"), say("assistant", "1")]
SECOND = [say("user", "two"), say("assistant", "2")]


def test_a_context_that_fits_stays_whole() -> None:
    assert truncate([*FIRST, *SECOND], 0) == [*FIRST, *SECOND]


def test_the_oldest_turn_is_dropped_first_and_whole() -> None:
    assert truncate([*FIRST, *SECOND, say("user", "three")], 1) == [*SECOND, say("user", "three")]


def test_instructions_and_the_newest_question_stay() -> None:
    rules = say("developer", "rules")
    items = [say("system", "system"), *FIRST, rules, *SECOND, say("user", "three")]
    assert truncate(items, 1 << 30) == [say("system", "system"), rules, say("user", "three")]


def test_tools_that_came_as_an_item_stay() -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": []}
    assert truncate([brought, *FIRST, say("user", "three")], 1 << 30) == [brought, say("user", "three")]


def test_the_newest_turns_oldest_calls_are_dropped_with_their_outputs() -> None:
    steps = [call("a"), output("a"), THOUGHT, call("b"), output("b"), say("assistant", "so far")]
    items = [say("user", "work"), *steps, call("c"), output("c")]
    assert truncate(items, 1) == [say("user", "work"), *steps[2:], call("c"), output("c")]
    assert truncate(items, 1 << 30) == [say("user", "work"), call("c"), output("c")]


def test_a_question_stays_with_the_call_that_was_made_for_it() -> None:
    items = [*SECOND, say("user", "look"), call("a"), output("a"), say("user", "and")]
    assert truncate(items, 1 << 30) == items[2:]


def test_the_tail_is_what_no_model_has_answered_with_its_calls_and_reasoning() -> None:
    items = [*SECOND, THOUGHT, call("a"), call("b"), output("a"), output("b")]
    assert tail_of(items) == 2
    assert tail_of([*items, say("user", "and")]) == 2
    assert tail_of(SECOND) == 2
    assert tail_of([say("user", "x")]) == 0
    assert tail_of([]) == 0


kinds = st.sampled_from(["user", "assistant", "system", "call", "output", "reasoning"])


@st.composite
def contexts(draw: st.DrawFn) -> list[Json]:
    items: list[Json] = []
    for n, kind in enumerate(draw(st.lists(kinds, max_size=25))):
        if kind == "call":
            items.append(call(f"c{n}"))
        elif kind == "output":
            items.append(output(f"c{draw(st.integers(0, n))}"))
        elif kind == "reasoning":
            items.append({**THOUGHT, "n": n})
        else:
            items.append(say(kind, f"{n} " + "x" * draw(st.integers(0, 100))))
    return assemble(items, [])


@given(contexts(), st.integers(0, 300))
def test_a_truncated_context_is_still_assembled(items: list[Json], excess: int) -> None:
    kept = truncate(items, excess)
    positions = [next(n for n, item in enumerate(items) if item is one) for one in kept]
    assert positions == sorted(positions)
    # No call without its output, no output without its call.
    calls = sorted(item["call_id"] for item in kept if item["type"] == "function_call")
    assert calls == sorted(item["call_id"] for item in kept if item["type"] == "function_call_output")
    assert assemble(kept, []) == kept
    # Instructions, the newest user message and the tail are all there.
    must = [item for item in items if item.get("role") == "system"] + items[tail_of(items) :]
    asked = [item for item in items if is_user_message(item)]
    assert all(any(item is one for one in kept) for item in must + asked[-1:])
    # It begins with a user message, if there is any and something was dropped.
    rest = [item for item in kept if item.get("role") != "system"]
    if any(is_user_message(item) for item in items[: tail_of(items) + 1]) and len(kept) < len(items):
        assert is_user_message(rest[0])
    # Enough was dropped, unless nothing more may be; and at most one group too many.
    gone = sum(map(estimate_item, items)) - sum(map(estimate_item, kept))
    assert gone >= excess or truncate(items, 1 << 30) == kept
