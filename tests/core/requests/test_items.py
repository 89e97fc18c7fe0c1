"""Items as callers send them, and as the server completes, refuses or resolves them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from openai import BaseModel
from openai.types.responses import (
    ResponseCustomToolCallItem,
    ResponseCustomToolCallOutputItem,
    ResponseFunctionToolCallItem,
    ResponseFunctionToolCallOutputItem,
    ResponseInputMessageItem,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from outlive.core.errors import InvalidRequest, NotFound
from outlive.core.events import Json
from outlive.core.requests.checks import Limits, Text, check_value, make_check
from outlive.core.requests.create import parse_create
from outlive.core.requests.items import Content, Part, find_references, parse_items, resolve

LIMITS = Limits()


class CountingIds:
    def __init__(self) -> None:
        self.count = 0

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_new{self.count}"


def parse(*items: Any, limits: Limits = LIMITS, at_most: int | None = None) -> list[dict[str, Any]]:
    return parse_items(list(items), "input", CountingIds(), limits, at_most)


def refusal(*items: Any, limits: Limits = LIMITS, at_most: int | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(*items, limits=limits, at_most=at_most)
    return caught.value


def message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "42"}


# -- completion


def test_a_message_without_type_gets_type_id_and_status():
    assert parse({"role": "user", "content": "hi"}) == [
        {
            "id": "msg_new1",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
            "status": "completed",
        }
    ]


def test_a_plain_string_stands_for_a_user_message():
    request = parse_create({"model": "m", "input": "hi"}, CountingIds(), Limits())
    assert request.input == parse({"role": "user", "content": "hi"})


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_string_content_of_other_roles_than_the_assistant_becomes_input_text(role: str):
    assert parse({"role": role, "content": "x"})[0]["content"] == [{"type": "input_text", "text": "x"}]


def test_string_content_of_the_assistant_becomes_output_text():
    content = parse({"role": "assistant", "content": "x"})[0]["content"]
    assert content == [{"type": "output_text", "text": "x", "annotations": []}]


def test_null_type_id_status_and_annotations_are_as_if_left_out():
    part = {"type": "output_text", "text": "x", "annotations": None}
    item = parse({"type": None, "id": None, "status": None, "role": "assistant", "content": [part]})[0]
    assert (item["type"], item["id"], item["status"]) == ("message", "msg_new1", "completed")
    assert item["content"][0]["annotations"] == []


def test_an_assistant_message_may_be_empty():
    assert parse(message(role="assistant"))[0]["content"] == []


@pytest.mark.parametrize(
    ("item", "prefix"),
    [
        (CALL, "fc"),
        (OUTPUT, "fc"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}, "ctc"),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "x"}, "ctc"),
    ],
)
def test_calls_and_outputs_get_an_id_of_their_kind_and_are_completed(item: dict[str, Any], prefix: str):
    assert parse(item) == [{"id": f"{prefix}_new1", **item, "status": "completed"}]


def test_a_given_id_and_status_stay():
    item = parse({**CALL, "id": "fc_mine", "status": "incomplete"})[0]
    assert (item["id"], item["status"]) == ("fc_mine", "incomplete")


def test_reasoning_gets_an_empty_summary_and_no_status():
    assert parse({"type": "reasoning"}) == [{"id": "rs_new1", "type": "reasoning", "summary": []}]


def test_an_image_gets_the_detail_auto():
    part = parse(message({"type": "input_image", "image_url": "data:,x"}))[0]["content"][0]
    assert part == {"type": "input_image", "image_url": "data:,x", "detail": "auto"}


def test_unknown_fields_are_kept():
    item = parse(
        {"role": "user", "content": [{"type": "input_text", "text": "x", "mark": 1}], "x_vendor": {"a": [None]}}
    )[0]
    assert item["x_vendor"] == {"a": [None]}
    assert item["content"][0]["mark"] == 1


CALLED = {"call_id": "call_1"}
NEEDED: dict[str, Json] = {
    **{
        f"{kind}{end}": CALLED
        for kind in ("shell_call", "apply_patch_call", "computer_call")
        for end in ("", "_output")
    },
    "local_shell_call": CALLED,
    "local_shell_call_output": {"output": "x"},
    "program": CALLED,
    "program_output": CALLED,
    "mcp_call": {"server_label": "s", "name": "f", "arguments": "{}"},
    "mcp_list_tools": {"server_label": "s", "tools": []},
    "mcp_approval_request": {"server_label": "s", "name": "f", "arguments": "{}"},
    "mcp_approval_response": {"approval_request_id": "mcpr_1", "approve": True},
}


@pytest.mark.parametrize(
    "kind",
    [
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
        "acme:search_result",
        "a_kind_of_next_year",
    ],
)
def test_items_of_foreign_tools_and_of_newer_kinds_are_kept_whole(kind: str):
    item = {"type": kind, "status": "failed", "anything": [1], **NEEDED.get(kind, {})}
    kept = parse(item)[0]
    assert kept.pop("id").endswith("_new1")
    assert kept == item


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("mcp_approval_response", {"approval_request_id": None}, ".approval_request_id"),
        ("mcp_approval_response", {"approval_request_id": 5}, ".approval_request_id"),
        ("mcp_approval_response", {"approve": "yes"}, ".approve"),
        ("mcp_approval_request", {"arguments": {}}, ".arguments"),
        ("mcp_call", {"output": [1]}, ".output"),
        ("mcp_list_tools", {"tools": ["x"]}, ".tools[0]"),
        ("shell_call", {"call_id": ["x"]}, ".call_id"),
        ("shell_call_output", {"call_id": None}, ".call_id"),
        ("shell_call_output", {"output": [{"type": "output_text"}]}, ".output[0].text"),
        ("shell_call_output", {"output": [{"stdout": 5}]}, ".output[0].stdout"),
        ("apply_patch_call_output", {"output": [{"type": "input_text", "text": 5}]}, ".output[0].text"),
        ("computer_call_output", {"output": [{"type": ["x"]}]}, ".output[0].type"),
        ("computer_call_output", {"output": {"type": "computer_screenshot"}}, ".output.image_url"),
        ("local_shell_call_output", {"output": [1]}, ".output"),
        ("local_shell_call_output", {"call_id": 1}, ".call_id"),
        ("program", {"call_id": 1}, ".call_id"),
        ("program_output", {"output": [{"type": {}}]}, ".output[0].type"),
        ("tool_search_output", {"tools": [5]}, ".tools[0]"),
        ("a_kind_of_next_year", {"call_id": 5}, ".call_id"),
    ],
)
def test_a_field_that_is_read_later_is_checked_when_the_item_comes_in(kind: str, fields: Json, param: str):
    with pytest.raises(InvalidRequest) as refused:
        parse({"type": kind, **NEEDED.get(kind, {}), **fields})
    assert refused.value.param == f"input[0]{param}"


def test_parsed_items_can_be_sent_again_and_stay_the_same():
    items = parse(
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, CALL, OUTPUT, {"type": "reasoning"}
    )
    assert parse(*items) == items


def test_the_given_items_stay_unchanged():
    given_items = [
        message({"type": "input_image", "image_url": "data:,x"}),
        message({"type": "output_text", "text": "x"}, role="assistant"),
        {"type": "reasoning"},
        {**OUTPUT, "output": [{"type": "input_text", "text": "x"}]},
    ]
    before = copy.deepcopy(given_items)
    parse(*given_items)
    assert given_items == before


# -- repeats


def test_an_item_given_twice_is_kept_once():
    once = {"id": "msg_1", "role": "user", "content": "x"}
    assert [item["id"] for item in parse(once, CALL, once)] == ["msg_1", "fc_new1"]


def test_items_without_ids_are_never_repeats():
    assert len(parse(CALL, CALL, {"role": "user", "content": "x"}, {"role": "user", "content": "x"})) == 4


def test_two_kinds_of_item_cannot_share_an_id():
    error = refusal({**CALL, "id": "fc_1"}, {**OUTPUT, "id": "fc_1"})
    assert (error.param, error.code) == ("input[1].id", "invalid_value")


# -- items that only a request can have


def parse_request(*items: Any) -> list[Json]:
    return parse_items(list(items), "input", CountingIds(), LIMITS, in_request=True)


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}])
def test_a_request_may_refer_to_items(reference: Json):
    assert parse_request(reference) == [{"id": "msg_1", "type": "item_reference"}]


def test_a_reference_to_an_item_of_the_input_is_dropped():
    reference = {"type": "item_reference", "id": "msg_1"}
    once = {"id": "msg_1", "role": "user", "content": "x"}
    assert [item["type"] for item in parse_request(once, reference)] == ["message"]
    assert [item["type"] for item in parse_request(reference, reference)] == ["item_reference"]
    assert [item["type"] for item in parse_request(reference, once)] == ["item_reference", "message"]


def test_a_request_may_end_with_a_trigger():
    items = parse_request({"role": "user", "content": "x"}, {"type": "compaction_trigger"})
    assert [item["type"] for item in items] == ["message", "compaction_trigger"]


def test_a_trigger_can_only_be_the_last():
    trigger = {"type": "compaction_trigger"}
    with pytest.raises(InvalidRequest) as caught:
        parse_request({"role": "user", "content": "x"}, trigger, trigger)
    assert caught.value.param == "input[1]"


# -- references that are resolved


def reference(item_id: str) -> Json:
    return {"id": item_id, "type": "item_reference"}


def stored(item_id: str) -> Json:
    return {"id": item_id, "type": "message", "role": "user", "content": []}


def test_references_to_items_outside_the_input_are_found() -> None:
    assert find_references([reference("a"), stored("b"), reference("c"), reference("b")]) == ["a", "c"]
    assert find_references([stored("a")]) == []


def test_items_take_the_places_of_their_references() -> None:
    items = [reference("a"), stored("b"), reference("c")]
    assert resolve(items, {"a": stored("a"), "c": stored("c")}) == [stored("a"), stored("b"), stored("c")]


def test_a_resolved_reference_to_an_item_of_the_input_is_dropped() -> None:
    assert resolve([reference("a"), stored("a")], {}) == [stored("a")]


def test_a_reference_to_an_unknown_item_is_named() -> None:
    with pytest.raises(NotFound, match="Item with id 'c' not found") as caught:
        resolve([stored("a"), reference("b"), reference("c")], {"b": stored("b")})
    assert caught.value.param == "input[2].id"


# -- refusals


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        (3, "input[0]", "invalid_type"),
        (None, "input[0]", "invalid_type"),
        ({}, "input[0].type", "missing_required_parameter"),
        ({"type": 3}, "input[0].type", "invalid_type"),
        ({"type": ["message"]}, "input[0].type", "invalid_type"),
        ({"type": "non sense"}, "input[0].type", "invalid_value"),
        ({"type": ""}, "input[0].type", "invalid_value"),
        ({"type": "n" * 65}, "input[0].type", "invalid_value"),
        ({"type": ":nonsense"}, "input[0].type", "invalid_value"),
        ({"type": "non:sen:se"}, "input[0].type", "invalid_value"),
        ({"type": "item_reference"}, "input[0].id", "missing_required_parameter"),
        ({"type": "item_reference", "id": 3}, "input[0].id", "invalid_type"),
        ({"type": "compaction"}, "input[0].encrypted_content", "missing_required_parameter"),
        ({"type": "compaction", "encrypted_content": 1}, "input[0].encrypted_content", "invalid_type"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type", "unsupported_parameter"),
        ({"id": "msg_1"}, "input[0].type", "unsupported_parameter"),
        ({"type": "compaction_trigger"}, "input[0].type", "unsupported_parameter"),
        ({"type": "message", "content": "x"}, "input[0].role", "missing_required_parameter"),
        ({"role": None, "content": "x"}, "input[0].role", "missing_required_parameter"),
        ({"role": "tool", "content": "x"}, "input[0].role", "invalid_value"),
        ({"role": "user"}, "input[0].content", "missing_required_parameter"),
        ({"role": "user", "content": {"text": "x"}}, "input[0].content", "invalid_type"),
        ({"role": "user", "content": "x", "id": 3}, "input[0].id", "invalid_type"),
        ({"role": "user", "content": "x", "id": "a b"}, "input[0].id", "invalid_value"),
        ({"role": "user", "content": "x", "id": ""}, "input[0].id", "invalid_value"),
        ({"role": "user", "content": "x", "status": "done"}, "input[0].status", "invalid_value"),
        ({"role": "user", "content": "x", "status": 1}, "input[0].status", "invalid_type"),
        ({**CALL, "call_id": None}, "input[0].call_id", "missing_required_parameter"),
        ({**CALL, "call_id": ""}, "input[0].call_id", "string_below_min_length"),
        ({**CALL, "call_id": "c" * 129}, "input[0].call_id", "string_above_max_length"),
        ({**CALL, "name": None}, "input[0].name", "missing_required_parameter"),
        ({**CALL, "arguments": {}}, "input[0].arguments", "invalid_type"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[0].input", "missing_required_parameter"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output", "missing_required_parameter"),
        ({**OUTPUT, "output": {"a": 1}}, "input[0].output", "invalid_type"),
        ({**OUTPUT, "output": [{"type": "nonsense"}]}, "input[0].output[0].type", "invalid_value"),
        ({"type": "reasoning", "summary": "x"}, "input[0].summary", "invalid_type"),
        ({"type": "reasoning", "encrypted_content": 1}, "input[0].encrypted_content", "invalid_type"),
        ({"type": "reasoning", "status": "failed"}, "input[0].status", "invalid_value"),
        ({"type": "web_search_call", "status": 1}, "input[0].status", "invalid_type"),
    ],
)
def test_a_wrong_item_is_refused_by_its_path(item: Any, param: str, code: str):
    error = refusal(item)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ("x", "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"type": 1}, ".type", "invalid_type"),
        ({"type": {}}, ".type", "invalid_type"),
        ({"type": "image_url", "image_url": {"url": "x"}}, ".type", "invalid_value"),
        ({"type": "input_text"}, ".text", "missing_required_parameter"),
        ({"type": "input_text", "text": ["x"]}, ".text", "invalid_type"),
        ({"type": "output_text", "text": "x", "annotations": {}}, ".annotations", "invalid_type"),
        ({"type": "refusal"}, ".refusal", "missing_required_parameter"),
        ({"type": "input_image"}, ".image_url", "missing_required_parameter"),
        ({"type": "input_image", "image_url": {"url": "x"}}, ".image_url", "invalid_type"),
        ({"type": "input_image", "image_url": "x", "detail": "huge"}, ".detail", "invalid_value"),
        ({"type": "input_image", "image_url": "x", "file_id": 1}, ".file_id", "invalid_type"),
        ({"type": "input_file", "file_id": "f" * 513}, ".file_id", "string_above_max_length"),
        ({"type": "input_file", "filename": "x"}, "", "missing_required_parameter"),
        ({"type": "input_file", "file_data": 1}, ".file_data", "invalid_type"),
        ({"type": "input_file", "file_data": "x", "detail": "original"}, ".detail", "invalid_value"),
        ({"type": "input_audio"}, ".input_audio", "missing_required_parameter"),
        ({"type": "input_audio", "input_audio": {"data": "x"}}, ".input_audio.format", "missing_required_parameter"),
        ({"type": "input_video"}, ".video_url", "missing_required_parameter"),
    ],
)
def test_a_wrong_part_is_refused_by_its_path(part: Any, param: str, code: str):
    error = refusal({"role": "user", "content": "x"}, message({"type": "input_text", "text": "x"}, part))
    assert (error.param, error.code) == ("input[1].content[1]" + param, code)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_file", "file_data": "data:,x", "filename": "x.pdf"},
        {"type": "input_file", "file_url": "https://example.org/x.pdf", "detail": "low"},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "input_video", "video_url": "https://example.org/x.mp4"},
        {"type": "refusal", "refusal": "no"},
        {"type": "text", "text": "x"},
        {"type": "input_image", "image_url": "x", "file_id": None, "detail": "original"},
        {"type": "input_image", "file_id": "file_1", "detail": "low"},
        {"type": "input_file", "file_id": "file_1"},
    ],
)
def test_whole_parts_stay_as_they_are(part: dict[str, Any]):
    assert parse(message(part))[0]["content"] == [part]


def test_items_must_come_in_an_array():
    with pytest.raises(InvalidRequest) as caught:
        parse_items({"role": "user"}, "items", CountingIds(), LIMITS)
    assert (caught.value.param, caught.value.code) == ("items", "invalid_type")


# -- limits


def test_more_items_than_the_limit_are_refused():
    error = refusal(CALL, CALL, CALL, limits=Limits(max_items=2))
    assert (error.param, error.code) == ("input", "array_above_max_length")
    assert "at most 2" in error.message


def test_an_endpoint_may_take_fewer_items_than_the_limit():
    assert len(parse(CALL, CALL, at_most=2)) == 2
    assert refusal(CALL, CALL, CALL, at_most=2).code == "array_above_max_length"


def test_text_longer_than_the_limit_is_refused():
    limits = Limits(max_text=4)
    assert parse({"role": "user", "content": "four"}, limits=limits)
    assert refusal({"role": "user", "content": "fives"}, limits=limits).param == "input[0].content"
    error = refusal(message({"type": "input_text", "text": "fives"}), limits=limits)
    assert (error.param, error.code) == ("input[0].content[0].text", "string_above_max_length")
    assert refusal({**CALL, "arguments": "fives"}, limits=limits).param == "input[0].arguments"
    assert refusal({**OUTPUT, "output": "fives"}, limits=limits).param == "input[0].output"


def test_an_image_may_be_longer_than_a_text():
    assert parse(message({"type": "input_image", "image_url": "data:," + "x" * 100}), limits=Limits(max_text=4))


def test_deep_items_are_refused_without_recursion():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    error = refusal({"role": "user", "content": "x", "x": deep})
    assert error.param == "input"
    assert "100 levels" in error.message


# -- properties

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(max_size=20)
identifiers = st.from_regex(r"\A[A-Za-z0-9_-]{1,20}\Z")
input_parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("input_text"), "text": texts}),
    st.fixed_dictionaries(
        {"type": st.just("input_image"), "image_url": st.text(min_size=1, max_size=9)},
        optional={"detail": st.sampled_from(["auto", "low", "high", "original", None])},
    ),
    st.fixed_dictionaries(
        {"type": st.just("input_file"), "file_data": st.text(min_size=1, max_size=9)}, optional={"filename": texts}
    ),
)
output_parts: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("output_text"), "text": texts}, optional={"annotations": st.sampled_from([None, []])}
    ),
    st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts}),
)
marks: dict[str, st.SearchStrategy[Any]] = {
    "id": st.none() | identifiers,
    "status": st.sampled_from([None, "in_progress", "completed", "incomplete"]),
}
call = {"call_id": identifiers, "name": identifiers}
outputs = texts | st.lists(input_parts, max_size=2)
valid_items = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "developer"]),
            "content": texts | st.lists(input_parts, max_size=3),
        },
        optional={"type": st.sampled_from([None, "message"]), **marks},
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts | st.lists(output_parts, max_size=3)},
        optional={"type": st.sampled_from([None, "message"]), **marks},
    ),
    st.fixed_dictionaries({"type": st.just("function_call"), **call, "arguments": texts}, optional=marks),
    st.fixed_dictionaries({"type": st.just("custom_tool_call"), **call, "input": texts}, optional=marks),
    st.fixed_dictionaries(
        {"type": st.just("function_call_output"), "call_id": identifiers, "output": outputs}, optional=marks
    ),
    st.fixed_dictionaries(
        {"type": st.just("custom_tool_call_output"), "call_id": identifiers, "output": outputs}, optional=marks
    ),
    st.fixed_dictionaries({"type": st.just("reasoning")}, optional={"summary": st.none() | st.just([]), **marks}),
)
ORACLES: dict[str, type[BaseModel]] = {
    "user": ResponseInputMessageItem,
    "system": ResponseInputMessageItem,
    "developer": ResponseInputMessageItem,
    "assistant": ResponseOutputMessage,
    "function_call": ResponseFunctionToolCallItem,
    "function_call_output": ResponseFunctionToolCallOutputItem,
    "custom_tool_call": ResponseCustomToolCallItem,
    "custom_tool_call_output": ResponseCustomToolCallOutputItem,
    "reasoning": ResponseReasoningItem,
}


@given(valid_items)
def test_every_item_made_is_one_the_official_types_know(item: dict[str, Any]):
    made = parse(item)[0]
    ORACLES[made["role"] if made["type"] == "message" else made["type"]].model_validate(made)


@given(st.lists(valid_items, max_size=5))
def test_ids_are_unique_and_a_second_pass_changes_nothing(items: list[dict[str, Any]]):
    kinds = {(item["id"], item.get("type") or "message") for item in items if item.get("id") is not None}
    assume(len({id_ for id_, _ in kinds}) == len(kinds))
    made = parse(*items)
    assert len({item["id"] for item in made}) == len(made)
    assert parse(*made) == made


@given(valid_items, st.data())
def test_a_random_field_of_an_item_raises_nothing_but_invalid_request(item: dict[str, Any], data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(item)))
    spoilt = {**item, name: data.draw(json_values)}
    before = copy.deepcopy(spoilt)
    error = None
    try:
        parse(spoilt)
    except InvalidRequest as caught:
        error = caught
    assert error is None or str(error.param).startswith("input[0].")
    assert spoilt == before


SHORT = Limits(max_text=10)
check_part = make_check(Part)
check_content = make_check(Content)

GOOD: list[tuple[Json, Json]] = [
    ({"type": "input_text", "text": "Hi"}, {}),
    ({"type": "input_text", "text": "Hi", "x_vendor": [1]}, {}),
    ({"type": "output_text", "text": "Hi"}, {"annotations": []}),
    ({"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation"}]}, {}),
    ({"type": "refusal", "refusal": "No"}, {}),
    ({"type": "input_image", "image_url": "data:image/png;base64,AAAA" * 3}, {"detail": "auto"}),
    ({"type": "input_image", "image_url": "https://x", "detail": "low"}, {}),
    ({"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"}, {}),
    ({"type": "input_file", "file_url": "https://x"}, {}),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}, {}),
    ({"type": "input_video", "video_url": "https://x"}, {}),
]

BAD: list[tuple[object, str, str]] = [
    ("Hi", "p", "invalid_type"),
    ({}, "p.type", "missing_required_parameter"),
    ({"type": "poem"}, "p.type", "invalid_value"),
    ({"type": 1}, "p.type", "invalid_type"),
    ({"type": "input_text"}, "p.text", "missing_required_parameter"),
    ({"type": "input_text", "text": 1}, "p.text", "invalid_type"),
    ({"type": "input_text", "text": "x" * 11}, "p.text", "string_above_max_length"),
    ({"type": "output_text", "text": "x", "annotations": {}}, "p.annotations", "invalid_type"),
    ({"type": "input_image"}, "p.image_url", "missing_required_parameter"),
    ({"type": "input_image", "image_url": "x", "detail": "tiny"}, "p.detail", "invalid_value"),
    ({"type": "input_image", "file_id": 1}, "p.file_id", "invalid_type"),
    ({"type": "input_file"}, "p", "missing_required_parameter"),
    ({"type": "input_file", "file_id": ""}, "p.file_id", "string_below_min_length"),
    ({"type": "input_audio"}, "p.input_audio", "missing_required_parameter"),
    ({"type": "input_audio", "input_audio": {"data": "x"}}, "p.input_audio.format", "missing_required_parameter"),
    ({"type": "input_video"}, "p.video_url", "missing_required_parameter"),
]


@pytest.mark.parametrize(("part", "added"), GOOD)
def test_a_part_is_kept_whole_and_the_given_one_is_not_changed(part: Json, added: Json) -> None:
    before = copy.deepcopy(part)
    assert check_part(part, SHORT) == part | added
    assert part == before


@pytest.mark.parametrize(("part", "param", "code"), BAD)
def test_a_part_that_cannot_be_used_is_refused_by_its_field(part: object, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_value(check_part, part, "p", SHORT)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_content_is_a_list_of_parts() -> None:
    parts = [part for part, _ in GOOD]
    assert len(check_content(parts, SHORT)) == len(parts)
    with pytest.raises(InvalidRequest) as caught:
        check_value(check_content, [parts[0], {}], "content", SHORT)
    assert caught.value.param == "content[1].type"
    with pytest.raises(InvalidRequest):
        check_content("Hi", SHORT)


def test_text_is_measured_in_characters() -> None:
    assert make_check(Text)("\N{PILE OF POO}" * 10, SHORT)
    with pytest.raises(InvalidRequest):
        make_check(Text)("\N{PILE OF POO}" * 11, SHORT)
