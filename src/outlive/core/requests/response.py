"""The Response of an accepted request: its fields echoed, and no output yet."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse

# `fast` is only a name in requests; the tier that serves it is called `priority`.
_TIER_NAMES = {"fast": "priority"}


def header(request: CreateResponse, response_id: str, created_at: int, model: str, status: str) -> Json:
    """Make a Response without output and usage. It shares the request's mappings; neither may be changed in place."""
    tier = request.service_tier or "auto"
    response: Json = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "background": request.background,
        "completed_at": None,
        "error": None,
        "frequency_penalty": 0.0 if request.frequency_penalty is None else request.frequency_penalty,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": 0.0 if request.presence_penalty is None else request.presence_penalty,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {"effort": None, "summary": None, **(request.reasoning or {})},
        "safety_identifier": request.safety_identifier,
        "service_tier": _TIER_NAMES.get(tier, tier),
        "store": request.store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **request.text},
        "tool_choice": request.tool_choice,
        "tools": request.tools,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata,
    }
    if request.conversation is not None:
        response["conversation"] = {"id": request.conversation}
    return response
