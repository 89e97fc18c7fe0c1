"""Strategies for bodies, items and frames: random ones, and some that are nearly right."""

from __future__ import annotations

import json
from typing import Any, get_args

from hypothesis import strategies as st

from outlive.core.requests.create import Includable

Json = dict[str, Any]

# Half surrogates can be written in JSON but not in UTF-8; sent as escapes they must not break anything either.
texts = st.text(st.characters(codec=None), max_size=40)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from([2**63, -(2**63) - 1, 2**200, 1e308, "", "\x00", "null", "resp_", "\ud800"])
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Make objects with some of these fields; now and then one of them has a value that may not fit."""
    whole = st.fixed_dictionaries({}, optional=fields)
    spoilt = st.builds(lambda some, name, value: {**some, name: value}, whole, st.sampled_from(sorted(fields)), values)
    return st.one_of(whole, whole, whole, whole, spoilt)


parts = maybe(
    type=st.sampled_from(["input_text", "output_text", "refusal", "input_image", "input_file", "summary_text", "text"]),
    text=texts,
    refusal=texts,
    image_url=st.sampled_from(["https://example.org/a.png", "data:image/png;base64,AAAA"]),
    file_data=st.just("data:application/pdf;base64,AAAA"),
    file_id=st.just("file_1"),
    annotations=st.just([]),
    detail=st.sampled_from(["auto", "low"]),
)
content = texts | st.lists(parts, max_size=3)
items = maybe(
    type=st.sampled_from(
        [
            "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
            "reasoning", "compaction", "compaction_trigger", "item_reference", "web_search_call", "x:y",
        ]
    ),
    role=st.sampled_from(["user", "assistant", "system", "developer"]),
    content=content,
    id=st.sampled_from(["msg_1", "msg_2", "fc_1"]),
    status=st.sampled_from(["completed", "in_progress", "incomplete"]),
    call_id=st.sampled_from(["call_1", "call_2"]),
    name=st.sampled_from(["look", "note"]),
    arguments=st.sampled_from(["{}", '{"a": 1}', "not json"]),
    input=texts,
    output=content,
    summary=st.lists(parts, max_size=2),
    encrypted_content=texts,
)  # fmt: skip
# Valid items: so much of a random one is wrong that few would ever be admitted.
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": texts},
    optional={"type": st.just("message"), "phase": values, "vendor": values},
)
calls = st.fixed_dictionaries(
    {"type": st.just("function_call"), "call_id": st.sampled_from(["call_1", "call_2"]), "name": st.just("look"),
     "arguments": st.sampled_from(["{}", "not json", ""])},
    optional={"status": st.sampled_from(["completed", "incomplete"]), "id": st.sampled_from(["fc_1", "fc_2"])},
)  # fmt: skip
outputs = st.fixed_dictionaries(
    {
        "type": st.just("function_call_output"),
        "call_id": st.sampled_from(["call_1", "call_2", "call_3"]),
        "output": texts,
    }
)
thoughts = st.fixed_dictionaries(
    {"type": st.just("reasoning"), "summary": st.just([])}, optional={"encrypted_content": texts}
)
good_items = st.one_of(messages, messages, calls, outputs, thoughts)
# Items of every kind with any fields: what is taken in of them must never block a conversation.
KINDS = (
    "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "computer_call",
    "computer_call_output", "shell_call", "shell_call_output", "local_shell_call", "local_shell_call_output",
    "apply_patch_call", "apply_patch_call_output", "tool_search_call", "tool_search_output", "program",
    "program_output", "mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "message",
    "reasoning", "web_search_call", "additional_tools", "compaction", "x:y",
)  # fmt: skip
FIELDS = (
    "call_id", "output", "content", "action", "operation", "tools", "approval_request_id", "approve", "name",
    "namespace", "arguments", "input", "status", "role", "summary", "encrypted_content", "server_label", "error",
    "code", "result",
)  # fmt: skip
fitting = st.sampled_from(["call_1", "user", "completed", "in_progress", "{}", True, [], {}, [{"type": "input_text"}]])
any_items = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(FIELDS), fitting | content | values, max_size=8),
)

inputs = texts | st.lists(st.one_of(good_items, good_items, good_items, items), max_size=5)

tools = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "name": st.sampled_from(["look", "note"])},
        optional={"parameters": st.just({"type": "object", "properties": {}}), "strict": st.booleans()},
    )
    | maybe(type=st.sampled_from(["function", "custom", "web_search"]), name=st.just("look"), parameters=values),
    max_size=3,
)
SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
options = maybe(
    instructions=texts,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    max_output_tokens=st.integers(16, 10**6),
    max_tool_calls=st.integers(1, 9),
    top_logprobs=st.integers(0, 20),
    presence_penalty=st.floats(-2, 2),
    parallel_tool_calls=st.booleans(),
    stream=st.booleans(),
    background=st.booleans(),
    store=st.booleans(),
    generate=st.booleans(),
    tools=tools,
    tool_choice=st.sampled_from(["auto", "none", "required", {"type": "function", "name": "look"}]),
    text=st.sampled_from([{}, {"format": {"type": "json_object"}}, {"format": SCHEMA, "verbosity": "low"}]),
    reasoning=st.sampled_from([{}, {"effort": "low"}, {"effort": None, "summary": "auto"}]),
    include=st.lists(st.sampled_from(get_args(Includable)), max_size=2),
    metadata=st.dictionaries(texts, texts, max_size=3),
    truncation=st.sampled_from(["auto", "disabled"]),
    context_management=st.sampled_from([[], [{"type": "compaction", "compact_threshold": 1000}]]),
    prompt_cache_options=st.sampled_from([{}, {"mode": "implicit"}, {"prewarm": False}]),
    service_tier=st.sampled_from(["auto", "flex"]),
    vendor_extra=values,
)
creates = st.builds(
    lambda some, body: {**some, **body}, options, st.fixed_dictionaries({"model": st.just("fuzz"), "input": inputs})
)
bodies = st.one_of(
    creates, creates, creates, st.builds(lambda some, given: {**some, "input": given}, options, values), values
)

steers = maybe(previous_response_id=st.just("resp_1"), input=texts, stream_id=texts).map(
    lambda body: {**body, "type": "response.steer"}
)
lanes = maybe(stream_id=st.sampled_from("ab"))
turns = st.builds(lambda body, lane: {**body, **lane, "type": "response.create"}, creates, lanes)
frames = st.one_of(
    turns.map(json.dumps),
    turns.map(json.dumps),
    steers.map(json.dumps),
    values.map(json.dumps),
    st.text(max_size=40),
    st.binary(max_size=40),
)
