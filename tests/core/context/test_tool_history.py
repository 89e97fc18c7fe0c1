"""Calls that a server made become function calls, which any model's server takes."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT, REFUSED, as_function_calls, assemble
from outlive.core.events import Json
from outlive.core.toolcalls import fail


def call(**fields: Any) -> Json:
    item = {"id": "mcp_1", "type": "mcp_call", "server_label": "docs", "name": "search", "arguments": '{"q":"x"}'}
    return {**item, "status": "completed", "output": "found", "error": None, **fields}


def ask(item_id: str = "mcpr_1") -> Json:
    return {"id": item_id, "type": "mcp_approval_request", "server_label": "docs", "name": "search", "arguments": "{}"}


def answer(approve: bool, **fields: Any) -> Json:
    return {"id": "a", "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve, **fields}


def outputs(items: list[Json]) -> list[str]:
    return [item["output"] for item in assemble(items, []) if item["type"] == "function_call_output"]


def test_items_without_server_calls_stay_unchanged() -> None:
    items: list[Json] = [{"id": "msg_1", "type": "message", "role": "user", "content": []}]
    assert as_function_calls(items) is items


def test_a_call_becomes_a_function_call_and_its_output() -> None:
    made, output = assemble([call()], [])
    assert (made["type"], made["name"], made["arguments"], made["call_id"]) == (
        "function_call",
        "search",
        '{"q":"x"}',
        "mcp_1",
    )
    assert (output["type"], output["call_id"], output["output"]) == ("function_call_output", "mcp_1", "found")


def test_a_renamed_tool_appears_under_the_models_name() -> None:
    assert as_function_calls([call()], {("docs", "search"): "docs_search"})[0]["name"] == "docs_search"
    assert as_function_calls([call()], {("other", "search"): "docs_search"})[0]["name"] == "search"


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (fail("no such page").error, "The call failed. no such page"),
        ({"type": "http_error", "code": 404, "message": "not found"}, "The call failed. not found"),
        ({"type": "mcp_tool_execution_error", "content": "plain"}, "The call failed. plain"),
        ("old shape", "The call failed. old shape"),
        ({"type": "odd"}, 'The call failed. {"type":"odd"}'),
    ],
)
def test_a_failed_call_has_its_error_as_output(error: Any, output: str) -> None:
    assert outputs([call(status="failed", output=None, error=error)]) == [output]


def test_a_call_without_an_outcome_is_left_out() -> None:
    assert assemble([call(status="incomplete", output=None)], []) == []


def test_lists_of_tools_are_left_out() -> None:
    assert assemble([{"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": []}], []) == []


def test_an_approved_call_appears_once() -> None:
    items = [ask(), answer(True), call(approval_request_id="mcpr_1")]
    assert [item["type"] for item in assemble(items, [])] == ["function_call", "function_call_output"]


def test_a_refused_call_has_the_refusal_as_output() -> None:
    assert outputs([ask(), answer(False)]) == [REFUSED]
    assert outputs([ask(), answer(False, reason="too dear")]) == [f"{REFUSED} Their reason: too dear"]


def test_a_refusal_that_comes_after_a_later_turn_stands_last() -> None:
    """The model is to answer the refusal, and not to go on from its own last words."""
    word: Json = {"id": "msg_1", "type": "message", "role": "assistant", "content": "I wait for the approval."}
    question: Json = {"id": "msg_0", "type": "message", "role": "user", "content": "And?"}
    context = assemble([ask(), question, word], [answer(False)])
    assert [item["type"] for item in context[-3:]] == ["message", "function_call", "function_call_output"]
    assert (context[-1]["output"], context[-1]["call_id"]) == (REFUSED, context[-2]["call_id"])


@pytest.mark.parametrize("items", [[ask()], [ask(), answer(True)]], ids=["unanswered", "approved, but never made"])
def test_an_approval_request_without_an_answer_gets_a_placeholder(items: list[Json]) -> None:
    assert outputs(items) == [PLACEHOLDER_OUTPUT]


def test_a_call_sent_again_with_the_next_turn_counts_once() -> None:
    assert [item["type"] for item in assemble([call()], [call()])] == ["function_call", "function_call_output"]
