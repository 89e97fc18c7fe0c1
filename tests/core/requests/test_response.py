"""The Response as accepted: every field there, echoed or by default, and known to the official types."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.requests.create import CreateResponse
from outlive.core.requests.response import header
from tests.core.journals import assert_official

# What Open Responses requires to be present, null or not.
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
def test_what_was_given_is_echoed(field: str, value: Any) -> None:
    response = make(**{field: value})
    assert response[field] == value
    assert_official(response)


def test_a_conversation_is_named_only_when_there_is_one() -> None:
    assert make(conversation="conv_1")["conversation"] == {"id": "conv_1"}
    assert "conversation" not in make()


def test_options_given_in_part_are_completed() -> None:
    assert make(text={"verbosity": "low"})["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert make(reasoning={"effort": "high"})["reasoning"] == {"effort": "high", "summary": None}


def test_a_tier_is_called_by_the_name_of_what_serves_it() -> None:
    assert make(service_tier="fast")["service_tier"] == "priority"
    assert make(service_tier="flex")["service_tier"] == "flex"
