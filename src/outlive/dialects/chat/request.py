"""The Chat Completions request made of a Responses request."""

from __future__ import annotations

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import shorten
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.messages import check_items, render_messages
from outlive.dialects.request import describe_custom, select_tools, wants_logprobs
from outlive.ports.backend import ModelCall, Upstream

# Fields that mean the same in both, and are sent when they were given.
_SAME = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)

# Fields that ask an upstream to continue the last message, by its way of continuation.
_CONTINUE_FIELDS: dict[str, Json] = {
    "continue_final_message": {"continue_final_message": True, "add_generation_prompt": False}
}

# Types of tools that can be sent; a custom tool is sent as a function.
_SENDABLE = frozenset({"function", "custom"})

_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def check(request: CreateResponse) -> None:
    """Raise InvalidRequest, naming the parameter, for what a Chat Completions server cannot be sent."""
    check_items(request.input)
    for n, tool in enumerate(request.tools):
        if tool["type"] not in _SENDABLE:
            raise InvalidRequest(_refusal(tool["type"]), param=f"tools[{n}].type", code="unsupported_parameter")


def render(call: ModelCall, upstream: Upstream) -> Json:
    """Render the body to send. Raises InvalidRequest naming what cannot be sent."""
    request = call.request
    body: Json = {
        **request.extra,  # first, because extras never override what is set here (D13)
        "model": call.model,
        "messages": render_messages(request.instructions, call.items, upstream.developer_role),
        "stream": True,
    }
    if upstream.stream_options:
        body["stream_options"] = {"include_usage": True}
    if upstream.sends_store:
        body["store"] = False
    for field in _SAME:
        if (value := getattr(request, field)) is not None:
            body[field] = value
    body |= _render_limits(call, upstream) | _render_form(request) | _render_tools(request)
    if call.resume is not None:
        last: Json = {"role": "assistant", "content": call.resume.text}
        body["messages"].append(last | ({"prefix": True} if upstream.continuation == "prefix" else {}))
        body |= _CONTINUE_FIELDS.get(upstream.continuation, {})
    return body


def _render_limits(call: ModelCall, upstream: Upstream) -> Json:
    most = call.request.max_output_tokens
    if most is None:
        return {}
    return {upstream.max_tokens_field: max(1, most - (call.resume.deltas if call.resume is not None else 0))}


def _render_form(request: CreateResponse) -> Json:
    """Render the form of the answer: format, verbosity, effort, log probabilities."""
    fields: Json = {}
    form = request.text.get("format") or {"type": "text"}
    if form["type"] == "json_schema":
        schema = {
            name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None
        }
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form["type"] != "text":
        fields["response_format"] = {"type": form["type"]}
    if request.text.get("verbosity"):
        fields["verbosity"] = request.text["verbosity"]
    if request.reasoning and request.reasoning.get("effort"):
        fields["reasoning_effort"] = request.reasoning["effort"]
    if wants_logprobs(request):
        fields["logprobs"] = True
        if request.top_logprobs:
            fields["top_logprobs"] = request.top_logprobs
    return fields


def _render_tools(request: CreateResponse) -> Json:
    tools, choice = select_tools(request)
    if not tools:
        return {}  # servers refuse a choice, or parallel_tool_calls, where there are no tools
    fields: Json = {"tools": [_render_tool(tool) for tool in tools]}
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice != "auto":
        fields["tool_choice"] = choice
    if request.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return fields


def _refusal(kind: str) -> str:
    return (
        f"'{shorten(kind)}' tools cannot be used with this model: neither this server nor the model's, which speaks "
        "Chat Completions, runs them. 'function' and 'custom' tools can be used; others need an upstream that speaks "
        "Responses and has them."
    )


def _render_tool(tool: Json) -> Json:
    function: Json = {"name": tool.get("name")}
    description = tool.get("description") or ""
    if tool["type"] == "custom":
        description, function["parameters"] = describe_custom(tool)
    else:
        function["parameters"] = tool.get("parameters") or _NO_PARAMETERS
        if tool.get("strict"):
            function["strict"] = True
    if description:
        function["description"] = description
    return {"type": "function", "function": function}
