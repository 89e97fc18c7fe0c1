"""The body of a create: fields that are accepted, and those that are refused by their path."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from openai.types.responses import Response

from outlive.core.errors import InvalidRequest
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateResponse, header, pack, parse_create, parse_metadata, unpack

LIMITS = Limits()


class CountingIds:
    def __init__(self) -> None:
        self.count = 0

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_new{self.count}"


def parse(limits: Limits = LIMITS, /, **fields: Any) -> CreateResponse:
    return parse_create({"model": "m", "input": "hi", **fields}, CountingIds(), limits)


def refusal(limits: Limits = LIMITS, /, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(limits, **fields)
    return caught.value


# -- accepted


def test_a_minimal_request_gets_the_defaults():
    request = parse()
    assert request == CreateResponse(
        model="m",
        input=[
            {
                "id": "msg_new1",
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "hi"}],
                "status": "completed",
            }
        ],
    )
    assert request.store
    assert not request.stream
    assert not request.given_ids


# Required, or found out by the server.
OWN = ("model", "input", "given_ids", "refers", "compacts", "deadline", "extra", "secrets", "event_names", "origin")
KNOWN = [name for name in CreateResponse.__struct_fields__ if name not in OWN]
UNKEPT = ["access_programs", "conversation_id", "image", "moderation", "multi_agent", "prompt"]
UNKEPT += ["session_id", "stream_options", "thread_id"]


@pytest.mark.parametrize("name", KNOWN + UNKEPT)
def test_null_is_as_if_left_out(name: str):
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("access_programs", {"cyber": "standard"}),
        ("context_management", []),
        ("image", {"context_compression": "auto"}),
        ("image", {"context_compression": "disabled"}),
        ("stream_options", {"include_obfuscation": True}),
        ("include", []),
        ("tools", []),
    ],
)
def test_a_field_that_asks_for_nothing_changes_nothing(name: str, value: Any):
    assert parse(**{name: value}) == parse()


def test_fields_are_kept_as_given():
    fields: dict[str, Any] = {
        "instructions": "be brief",
        "stream": True,
        "store": False,
        "previous_response_id": "resp_1",
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
        "max_output_tokens": 16,
        "max_tool_calls": 1,
        "temperature": 2,
        "top_p": 0.5,
        "top_logprobs": 20,
        "presence_penalty": -2.0,
        "frequency_penalty": 2,
        "parallel_tool_calls": False,
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "xhigh", "max_tokens": 5},
        "truncation": "disabled",
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
        "safety_identifier": "s",
        "user": "u",
    }
    request = parse(**fields)
    assert {name: getattr(request, name) for name in fields} == fields
    assert isinstance(request.temperature, float)


@pytest.mark.parametrize("value", ["conv_1", {"id": "conv_1"}, {"id": "conv_1", "object": "conversation"}])
def test_a_conversation_is_given_by_its_id_alone_or_in_an_object(value: Any):
    assert parse(conversation=value).conversation == "conv_1"


def test_unknown_fields_are_kept_for_the_upstream():
    assert parse(top_k=40, chat_template_kwargs={"a": None}, seed=None).extra == {
        "top_k": 40,
        "chat_template_kwargs": {"a": None},
        "seed": None,
    }


def test_items_with_ids_of_their_own_are_noticed():
    assert not parse(input=[{"role": "user", "content": "x"}, {"role": "user", "content": "x", "id": None}]).given_ids
    assert parse(input=[{"role": "user", "content": "x"}, {"role": "user", "content": "x", "id": "msg_1"}]).given_ids


def test_references_are_noticed():
    reference = {"type": "item_reference", "id": "msg_1"}
    assert not parse(input=[{"role": "user", "content": "x", "id": "msg_1"}]).refers
    assert parse(input=[reference]).refers
    assert parse(input=[{"id": "msg_1"}]).refers
    assert parse(input=[{"type": "compaction", "encrypted_content": "x"}]).refers


def test_a_trigger_is_taken_out_of_the_input():
    request = parse(input=[{"role": "user", "content": "x"}, {"type": "compaction_trigger"}])
    assert request.compacts
    assert [item["type"] for item in request.input] == ["message"]
    assert parse(input=[{"type": "compaction_trigger"}], previous_response_id="resp_1").input == []
    assert not parse().compacts


@pytest.mark.parametrize("state", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
@pytest.mark.parametrize("empty", [None, []])
def test_input_may_be_empty_when_something_came_before(state: dict[str, Any], empty: Any):
    assert parse(input=empty, **state).input == []


@pytest.mark.parametrize("wish", [{"generate": False}, {"generate": True, "prompt_cache_options": {"prewarm": True}}])
def test_input_may_be_empty_when_no_model_is_asked(wish: dict[str, Any]):
    assert parse(**wish).generate is False
    assert parse(input=[], **wish).input == parse(input=None, **wish).input == []
    assert parse(generate=True, prompt_cache_options={"prewarm": False}).generate is True


def test_a_json_schema_is_echoed_with_its_defaults():
    given_format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    expected = {"type": "json_schema", "description": None, "name": "n", "schema": {"type": "object"}, "strict": False}
    assert parse(text={"format": given_format, "verbosity": None}).text == {"format": expected}


# -- refused


@pytest.mark.parametrize("body", [None, [], "x", 1, True])
def test_a_body_that_is_no_object_is_refused(body: Any):
    with pytest.raises(InvalidRequest) as caught:
        parse_create(body, CountingIds(), LIMITS)
    assert (caught.value.param, caught.value.code) == (None, "invalid_type")


@pytest.mark.parametrize(
    ("name", "value", "param", "code"),
    [
        ("model", None, "model", "missing_required_parameter"),
        ("model", "", "model", "string_below_min_length"),
        ("model", 4, "model", "invalid_type"),
        ("input", None, "input", "missing_required_parameter"),
        ("input", [], "input", "empty_array"),
        ("input", {"role": "user"}, "input", "invalid_type"),
        ("input", [{"type": "item_reference"}], "input[0].id", "missing_required_parameter"),
        ("input", [{"type": "compaction_trigger"}], "input", "invalid_value"),
        ("input", [{"type": "compaction_trigger"}, {"role": "user", "content": "x"}], "input[0]", "invalid_value"),
        ("instructions", ["x"], "instructions", "invalid_type"),
        ("stream", "true", "stream", "invalid_type"),
        ("stream", 1, "stream", "invalid_type"),
        ("store", 0, "store", "invalid_type"),
        ("background", "no", "background", "invalid_type"),
        ("previous_response_id", 1, "previous_response_id", "invalid_type"),
        ("previous_response_id", "a/b", "previous_response_id", "invalid_value"),
        ("conversation", 1, "conversation", "invalid_type"),
        ("conversation", "", "conversation", "invalid_value"),
        ("conversation", "wa_10", "conversation", "invalid_value"),
        ("conversation", {"id": "resp_1"}, "conversation.id", "invalid_value"),
        ("previous_response_id", "conv_1", "previous_response_id", "invalid_value"),
        ("conversation", {}, "conversation.id", "missing_required_parameter"),
        ("conversation", {"id": 1}, "conversation.id", "invalid_type"),
        ("include", "x", "include", "invalid_type"),
        ("include", ["reasoning.encrypted_content", "x"], "include[1]", "invalid_value"),
        ("include", [1], "include[0]", "invalid_type"),
        ("max_output_tokens", 15, "max_output_tokens", "integer_below_min_value"),
        ("max_output_tokens", 2**60, "max_output_tokens", "integer_above_max_value"),
        ("max_output_tokens", True, "max_output_tokens", "invalid_type"),
        ("max_output_tokens", 16.0, "max_output_tokens", "invalid_type"),
        ("max_tool_calls", 0, "max_tool_calls", "integer_below_min_value"),
        ("temperature", 2.1, "temperature", "decimal_above_max_value"),
        ("temperature", -0.1, "temperature", "decimal_below_min_value"),
        ("temperature", "1", "temperature", "invalid_type"),
        ("temperature", True, "temperature", "invalid_type"),
        ("top_p", 1.5, "top_p", "decimal_above_max_value"),
        ("top_logprobs", 21, "top_logprobs", "integer_above_max_value"),
        ("top_logprobs", False, "top_logprobs", "invalid_type"),
        ("presence_penalty", 3, "presence_penalty", "decimal_above_max_value"),
        ("parallel_tool_calls", 1, "parallel_tool_calls", "invalid_type"),
        ("tools", {}, "tools", "invalid_type"),
        ("tool_choice", {"type": "function", "name": "f"}, "tool_choice.name", "invalid_value"),
        ("text", "x", "text", "invalid_type"),
        ("text", {"verbosity": "loud"}, "text.verbosity", "invalid_value"),
        ("text", {"format": "json"}, "text.format", "invalid_type"),
        ("text", {"format": {}}, "text.format.type", "missing_required_parameter"),
        ("text", {"format": {"type": "xml"}}, "text.format.type", "invalid_value"),
        ("text", {"format": {"type": "json_schema"}}, "text.format.name", "missing_required_parameter"),
        ("text", {"format": {"type": "json_schema", "name": "n"}}, "text.format.schema", "missing_required_parameter"),
        ("text", {"format": {"type": "json_schema", "name": "a b", "schema": {}}}, "text.format.name", "invalid_value"),
        ("text", {"format": {"type": "json_schema", "name": "n", "schema": []}}, "text.format.schema", "invalid_type"),
        ("reasoning", "high", "reasoning", "invalid_type"),
        ("reasoning", {"effort": "huge"}, "reasoning.effort", "invalid_value"),
        ("reasoning", {"summary": 1}, "reasoning.summary", "invalid_type"),
        ("truncation", "some", "truncation", "invalid_value"),
        ("service_tier", "gold", "service_tier", "invalid_value"),
        ("prompt_cache_key", 1, "prompt_cache_key", "invalid_type"),
        ("prompt_cache_retention", "1h", "prompt_cache_retention", "invalid_value"),
        ("prompt_cache_options", {"mode": 1}, "prompt_cache_options.mode", "invalid_type"),
        ("prompt_cache_options", {"prewarm": 1}, "prompt_cache_options.prewarm", "invalid_type"),
        ("safety_identifier", "x" * 129, "safety_identifier", "string_above_max_length"),
        ("user", 1, "user", "invalid_type"),
        ("stream_options", True, "stream_options", "invalid_type"),
        ("stream_options", {"include_obfuscation": 1}, "stream_options.include_obfuscation", "invalid_type"),
        ("prompt", {"id": "pmpt_1"}, "prompt", "unsupported_parameter"),
        ("moderation", {"model": "x"}, "moderation", "unsupported_parameter"),
        ("multi_agent", {}, "multi_agent", "unsupported_parameter"),
        ("image", {"context_compression": "enabled"}, "image.context_compression", "unsupported_parameter"),
        ("context_management", [{}], "context_management[0].type", "missing_required_parameter"),
        ("truncation", "yes", "truncation", "invalid_value"),
        ("conversation_id", "c", "conversation_id", "unknown_parameter"),
        ("thread_id", "c", "thread_id", "unknown_parameter"),
        ("session_id", "c", "session_id", "unknown_parameter"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(name: str, value: Any, param: str, code: str):
    error = refusal(**{name: value})
    assert (error.param, error.code) == (param, code)
    assert error.message.endswith((".", "?"))


def test_background_without_store_is_refused_with_the_reason():
    error = refusal(background=True, store=False)
    assert error.param == "store"
    assert "not stored is gone" in error.message
    assert parse(background=True, store=True).background
    assert not parse(background=False, store=False).store


def test_conversation_and_previous_response_exclude_each_other():
    assert refusal(conversation="conv_1", previous_response_id="resp_1").param == "previous_response_id"


@pytest.mark.parametrize("name", ["conversation_id", "thread_id", "session_id"])
def test_other_names_for_a_conversation_are_asked_about(name: str):
    assert "Did you mean 'conversation'?" in refusal(**{name: "x"}).message


def test_messages_instead_of_input_get_a_hint():
    assert "'messages'" in refusal(input=None, messages=[]).message


def test_a_long_wrong_value_is_not_repeated_whole():
    assert len(refusal(service_tier="x" * 10_000).message) < 300


# -- limits


def test_texts_over_the_limit_are_refused():
    limits = Limits(max_text=4)
    assert refusal(limits, input="fives").param == "input"
    assert refusal(limits, input="four", instructions="fives").param == "instructions"
    assert parse(limits, input="four", instructions="four").instructions == "four"


@pytest.mark.parametrize("name", ["input", "metadata", "x_vendor", "tools"])
def test_a_deep_field_is_refused_by_its_name(name: str):
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    error = refusal(**{name: deep})
    assert error.param == name
    assert "levels deep" in error.message


def test_exactly_the_allowed_depth_is_accepted():
    assert parse(Limits(max_depth=2), x_vendor=[[1]]).extra == {"x_vendor": [[1]]}
    assert refusal(Limits(max_depth=2), x_vendor=[[[]]]).param == "x_vendor"


# -- metadata


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ([], "metadata", "invalid_type"),
        ({str(n): "" for n in range(17)}, "metadata", "object_above_max_properties"),
        ({"a": 1}, "metadata.a", "invalid_type"),
        ({"a": None}, "metadata.a", "invalid_type"),
        ({"a": "x" * 513}, "metadata.a", "string_above_max_length"),
        ({"k" * 65: "x"}, "metadata." + "k" * 60 + "...", "string_above_max_length"),
    ],
)
def test_wrong_metadata_is_refused(metadata: Any, param: str, code: str):
    error = refusal(metadata=metadata)
    assert (error.param, error.code) == (param, code)


def test_metadata_at_its_limits_is_accepted():
    full = {f"{n:064}": "x" * 512 for n in range(16)}
    assert parse_metadata(full) == full
    assert parse_metadata(None) == {}


# -- properties

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(max_size=20)
identifiers = st.from_regex(r"\A[A-Za-z0-9_-]{1,20}\Z")
conversation_ids = identifiers.map("conv_{}".format)
functions = st.fixed_dictionaries(
    {"type": st.just("function"), "name": identifiers},
    optional={
        "description": st.none() | texts,
        "parameters": st.none() | st.dictionaries(texts, json_values, max_size=2),
        "strict": st.none() | st.booleans(),
        "x_vendor": json_values,
    },
)
customs = st.fixed_dictionaries(
    {"type": st.just("custom"), "name": identifiers},
    optional={
        "description": st.none() | texts,
        "format": st.sampled_from([None, {"type": "text"}, {"type": "grammar", "syntax": "regex", "definition": "a+"}]),
    },
)
formats = st.one_of(
    st.none(),
    st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    st.fixed_dictionaries(
        {
            "type": st.just("json_schema"),
            "name": identifiers,
            "schema": st.dictionaries(texts, json_values, max_size=2),
        },
        optional={"strict": st.none() | st.booleans(), "description": st.none() | texts},
    ),
)
summaries = st.sampled_from([None, "auto", "concise", "detailed"])
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "instructions": st.none() | texts,
    "stream": st.none() | st.booleans(),
    "store": st.sampled_from([None, True]),
    "background": st.none() | st.booleans(),
    "conversation": st.none() | conversation_ids | st.fixed_dictionaries({"id": conversation_ids}),
    "metadata": st.none() | st.dictionaries(texts, texts, max_size=3),
    "max_output_tokens": st.none() | st.integers(16, 10**6),
    "max_tool_calls": st.none() | st.integers(1, 100),
    "temperature": st.none() | st.integers(0, 2) | st.floats(0, 2),
    "top_p": st.none() | st.floats(0, 1),
    "top_logprobs": st.none() | st.integers(0, 20),
    "presence_penalty": st.none() | st.floats(-2, 2),
    "parallel_tool_calls": st.none() | st.booleans(),
    "tools": st.none() | st.lists(functions | customs, max_size=3),
    "tool_choice": st.sampled_from([None, "none", "auto"]),
    "text": st.none()
    | st.fixed_dictionaries({}, optional={"format": formats, "verbosity": st.sampled_from([None, "low", "high"])}),
    "reasoning": st.none()
    | st.fixed_dictionaries({}, optional={"effort": st.sampled_from([None, "none", "max"]), "summary": summaries}),
    "truncation": st.sampled_from([None, "disabled"]),
    "service_tier": st.sampled_from([None, "auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]),
    "prompt_cache_key": st.none() | texts,
    "prompt_cache_retention": st.sampled_from([None, "in_memory", "24h"]),
    "safety_identifier": st.none() | texts,
    "user": st.none() | texts,
    "x_vendor": json_values,
}
bodies = st.fixed_dictionaries({"model": st.text(min_size=1, max_size=9), "input": texts}, optional=OPTIONS)
statuses = st.sampled_from(["queued", "in_progress"])


@given(st.text())
def test_a_text_stands_for_a_message_of_the_user(text: str) -> None:
    message = {"role": "user", "content": text}
    assert json.encode(parse(input=text).input) == json.encode(parse(input=[message]).input)


@given(bodies, statuses, st.data())
def test_every_header_is_one_the_official_types_know(body: dict[str, Any], status: str, data: st.DataObject):
    request = parse_create(body, CountingIds(), LIMITS)
    if request.tools:
        tool = data.draw(st.sampled_from(request.tools))
        choice = {"type": tool["type"], "name": tool["name"]}
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
        chosen = data.draw(st.sampled_from([choice, allowed, "required"]))
        request = parse_create({**body, "tool_choice": chosen}, CountingIds(), LIMITS)
    response = Response.model_validate(header(request, "resp_1", 1_700_000_000, "m-2", status))
    assert (response.id, response.model, response.status, response.output) == ("resp_1", "m-2", status, [])
    assert (response.conversation.id if response.conversation else None) == request.conversation


@given(bodies)
def test_a_packed_request_is_unpacked_the_same(body: dict[str, Any]):
    request = parse_create(body, CountingIds(), LIMITS)
    packed = pack(request)
    assert unpack(packed, request.input) == request


def test_a_packed_request_holds_no_input():
    assert b"canary" not in pack(parse(input="canary"))


@given(bodies, st.data())
def test_a_random_field_raises_nothing_but_invalid_request(body: dict[str, Any], data: st.DataObject):
    name = data.draw(st.sampled_from(KNOWN + UNKEPT + ["model", "input"]))
    spoilt = {**body, name: data.draw(json_values)}
    before = copy.deepcopy(spoilt)
    error = None
    try:
        request = parse_create(spoilt, CountingIds(), LIMITS)
        header(request, "resp_1", 0, "m", "queued")
        assert unpack(pack(request), request.input) == request
    except InvalidRequest as caught:
        error = caught
    others = ("tool_choice", "store", "previous_response_id")  # fields that may be wrong because of this one
    assert error is None or str(error.param).startswith((name, *others))
    assert spoilt == before
