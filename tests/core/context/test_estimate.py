"""Estimates grow with the text that a model reads, and ignore the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.context.estimate import PER_IMAGE, PER_IMAGE_LOW, PER_ITEM, estimate_item, estimate_request
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse


def say(*content: Json) -> Json:
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
    assert estimate_item(say(*content)) == PER_ITEM + tokens


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
    bare = estimate_request(request(), [say(text("four"))])
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
