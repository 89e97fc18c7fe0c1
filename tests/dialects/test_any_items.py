"""Items of any content, as an older version may have stored them, become a valid request in every dialect (D25)."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from outlive.core.context.assemble import assemble, find_stray_output, finish_calls, is_call
from outlive.core.context.compaction import open_context, split, split_all, split_beside
from outlive.core.context.window import estimate_request, truncate
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.items import parse_items
from outlive.core.toolcalls import find_approved
from outlive.dialects.anthropic import request as anthropic
from outlive.dialects.chat import request as chat
from outlive.dialects.responses import request as responses
from outlive.ports.backend import ModelCall, Upstream
from tests.support import responses_upstream
from tests.support.anthropic_upstream import examine
from tests.support.scripting import CountingIds
from tests.support.upstream import UpstreamCall

UPSTREAM = Upstream(name="u", url="http://127.0.0.1/v1", reasoning_input="encrypted")
VERSION = {"anthropic-version": "2023-06-01"}
CALLS = (
    "function_call", "custom_tool_call", "computer_call", "shell_call", "local_shell_call", "apply_patch_call",
    "tool_search_call", "program", "mcp_call",
)  # fmt: skip
KINDS = (
    *CALLS, *(f"{kind}_output" for kind in CALLS), "tool_search_output", "program_output", "message", "reasoning",
    "mcp_approval_request", "mcp_approval_response", "mcp_list_tools", "web_search_call", "compaction", "vendor:kind",
    "additional_tools", "acme:search",
)  # fmt: skip
FIELDS = (
    "call_id", "output", "content", "action", "operation", "tools", "approval_request_id", "approve", "name",
    "namespace", "arguments", "input", "status", "role", "summary", "encrypted_content", "server_label", "error",
    "code", "result", "execution", "is_error",
)  # fmt: skip
WORDS = st.sampled_from(["1", "2", "user", "assistant", "developer", "completed", "in_progress", "failed", "mcpr_1"])
PART_TYPES = st.sampled_from(["input_text", "output_text", "refusal", "input_image", "input_file", "input_audio"])

odd_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | WORDS | st.just("data:image/png;base64,x"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "refusal", "image_url", "file_url", "file_id", "file_data", "commands", "x"]
            ),
            inner | PART_TYPES,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@st.composite
def items(draw: st.DrawFn) -> list[Json]:
    drawn: list[Json] = []
    for _ in range(draw(st.integers(0, 8))):
        fields = draw(st.dictionaries(st.sampled_from(FIELDS), odd_values, max_size=6))
        item_id = draw(st.sampled_from(["mcpr_1", "fc_1"])) if draw(st.booleans()) else f"item_{len(drawn)}"
        kind = draw(odd_values if draw(st.integers(0, 9)) == 9 else st.sampled_from(KINDS))
        drawn.append({"id": item_id, "type": kind, **fields})
    return drawn


def render_all(context: list[Json]) -> list[Json]:
    call = ModelCall("m", CreateResponse(model="m", input=[]), context)
    bodies = [chat.render(call, UPSTREAM), anthropic.render(call, UPSTREAM), responses.render(call, UPSTREAM)]
    decoded: list[Json] = [msgspec.json.decode(msgspec.json.encode(body)) for body in bodies]
    check_chat(decoded[0]["messages"])
    examine(UpstreamCall("/v1/messages", VERSION, decoded[1]), set())
    responses_upstream.examine(decoded[2])
    return decoded


def check_chat(messages: list[Json]) -> None:
    """Check what chat servers check: roles, contents, and that each call is answered right behind its message."""
    waiting: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            assert isinstance(message["content"], str)
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        assert message["role"] in ("system", "developer", "user", "assistant")
        assert isinstance(message["content"], str | list) or message["tool_calls"]
        for call in message.get("tool_calls", ()):
            assert isinstance(call["id"], str)
            assert isinstance(call["function"]["name"], str)
            msgspec.json.decode(call["function"]["arguments"])
            waiting.append(call["id"])
    assert not waiting


@given(items(), items())
def test_any_items_give_a_valid_request_in_every_dialect(history: list[Json], given: list[Json]) -> None:
    render_all(assemble(finish_calls(history), finish_calls(given)))


@given(items(), items())
@example([], [{"id": "item_0", "type": "mcp_approval_request", "call_id": "call_1"}])
def test_no_call_that_a_caller_sent_vanishes(history: list[Json], given: list[Json]) -> None:
    calls = [{**item, "id": f"i_{n}"} for n, item in enumerate([*history, *given]) if is_call(item)]
    sent: set[str] = {item["call_id"] for item in calls}
    chats, claude, others = render_all(assemble(finish_calls(calls), []))
    made = [call["id"] for message in chats["messages"] for call in message.get("tool_calls", ())]
    assert sent == set(made)
    uses = [block for message in claude["messages"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(uses) == len(made) == len([item for item in others["input"] if is_call(item)]) == len(calls)


@given(items())
def test_any_context_can_be_truncated_compacted_and_estimated(history: list[Json]) -> None:
    context = assemble(open_context(history, lambda item: None), [])
    estimate_request(CreateResponse(model="m", input=[]), context)
    render_all(assemble(truncate(context, 40), []))
    split(context, 100)
    split_all(context, 100)
    split_beside(context)


@given(items(), items())
def test_any_items_can_be_searched_for_approvals_and_strays(history: list[Json], given: list[Json]) -> None:
    find_stray_output(history, given)
    with contextlib.suppress(InvalidRequest):
        find_approved(history, given, [])


@given(items())
def test_items_that_are_taken_in_can_be_sent(given: list[Json]) -> None:
    ids = CountingIds()
    for item in given:
        with contextlib.suppress(InvalidRequest):
            render_all(assemble(parse_items([item], "items", ids, Limits()), []))
