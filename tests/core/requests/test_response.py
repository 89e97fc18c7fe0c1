"""The Response as accepted: every field there, echoed or by default, and known to the official types."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.requests.create import CreateResponse, header
from tests.core.journals import assert_official

# Fields that Open Responses requires to be present, null or not.
REQUIRED = {
    *("id", "object", "created_at", "status", "background", "completed_at", "error", "incomplete_details"),
    *("instructions", "max_output_tokens", "max_tool_calls", "model", "output", "parallel_tool_calls"),
    *("previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store"),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "usage", "metadata"),
    *("presence_penalty", "frequency_penalty"),
}


def make(status: str = "in_progress", **fields: Any) -> dict[str, Any]:
    return header(CreateResponse(model="asked", input=[], **fields), "resp_1", 7, "answers", status)


def test_every_required_field_is_there_with_its_default() -> None:
    response = make()
    assert set(response) >= REQUIRED
    assert_official(response)
    assert (response["id"], response["object"], response["created_at"]) == ("resp_1", "response", 7)
    assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
    assert (response["temperature"], response["top_p"], response["top_logprobs"]) == (1.0, 1.0, 0)
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert response["reasoning"] == {"effort": None, "summary": None}
    assert (response["tool_choice"], response["tools"], response["parallel_tool_calls"]) == ("auto", [], True)
    assert (response["truncation"], response["service_tier"], response["store"]) == ("disabled", "auto", True)
    assert response["metadata"] == {}


def test_the_model_is_the_one_that_answers() -> None:
    assert make()["model"] == "answers"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", True),
        ("store", False),
        ("instructions", "Be brief."),
        ("max_output_tokens", 100),
        ("temperature", 0.0),
        ("top_p", 0.0),
        ("presence_penalty", -1.0),
        ("frequency_penalty", 1.0),
        ("parallel_tool_calls", False),
        ("previous_response_id", "resp_0"),
        ("metadata", {"a": "b"}),
        ("user", "u"),
        ("safety_identifier", "s"),
        ("prompt_cache_key", "k"),
        ("tool_choice", "none"),
    ],
)
def test_a_given_field_is_echoed(field: str, value: Any) -> None:
    response = make(**{field: value})
    assert response[field] == value
    assert_official(response)


def test_a_conversation_is_named_only_when_there_is_one() -> None:
    assert make(conversation="conv_1")["conversation"] == {"id": "conv_1"}
    assert "conversation" not in make()


def test_options_given_in_part_are_completed() -> None:
    assert make(text={"verbosity": "low"})["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert make(reasoning={"effort": "high"})["reasoning"] == {"effort": "high", "summary": None}


def test_the_fast_tier_is_echoed_as_priority() -> None:
    assert make(service_tier="fast")["service_tier"] == "priority"
    assert make(service_tier="flex")["service_tier"] == "flex"


LIVE_ORDER = [
    "id",
    "object",
    "created_at",
    "status",
    "background",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "model",
    "output",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "usage",
    "user",
    "metadata",
]


def test_the_header_of_a_minimal_request_has_every_field_and_default() -> None:
    assert header(CreateResponse(model="m", input=[]), "resp_1", 1_700_000_000, "m-2026", "in_progress") == {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "m-2026",
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "auto",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    }


def test_the_keys_of_a_header_come_in_the_order_of_live_responses() -> None:
    keys = [key for key in make("queued") if key in LIVE_ORDER]
    assert keys == LIVE_ORDER
