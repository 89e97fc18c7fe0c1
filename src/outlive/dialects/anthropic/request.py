"""The request to Anthropic's Messages API made of a Responses request."""

from __future__ import annotations

import re

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import refuse, refuse_unsupported, shorten
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.blocks import render_cache
from outlive.dialects.anthropic.context import MessagesContext
from outlive.dialects.anthropic.schema import fit
from outlive.dialects.request import describe_custom, select_tools, wants_logprobs, wants_summary
from outlive.ports.backend import ModelCall, Upstream

# Tokens to think with, for models that take a number instead of a word. The API refuses fewer than LEAST_BUDGET.
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_000, "max": 32_000}
LEAST_BUDGET = 1024
_EFFORTS = {"minimal": "low"}  # the others have the same name

# Claude before 4.6. A closed set: all newer models decide themselves how much to think.
_BUDGETED = re.compile(
    r"claude-(?:[1-3]|instant|4-(?:opus|sonnet)|(?:opus|sonnet|haiku)-4(?:[-.][0-5](?!\d)|[-@]20\d{6}|$))"
)

_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_MOST_TEMPERATURE = 1.0
_MOST_USER = 256  # characters


def check(request: CreateResponse) -> None:
    """Raise InvalidRequest, naming the parameter, for what this API cannot be sent."""
    form = request.text.get("format") or {}
    if form.get("type") == "json_object":
        why = "this model's server has no JSON without a schema. Use 'json_schema'."
        refuse_unsupported("text.format.type", why)
    if wants_logprobs(request):
        param = "top_logprobs" if request.top_logprobs else "include"
        refuse_unsupported(param, "this model's server tells no log probabilities.")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(request, name):
            refuse_unsupported(name, "this model's server has no such penalty.")
    if request.temperature is not None and request.temperature > _MOST_TEMPERATURE:
        refuse("'temperature' must be at most 1 for this model's server.", "temperature", "decimal_above_max_value")
    for n, tool in enumerate(request.tools):
        if tool["type"] not in ("function", "custom"):
            why = f"'{shorten(str(tool['type']))}' is not a tool that this model's server can be given."
            refuse_unsupported(f"tools[{n}].type", why)
    check_items(request.input)


def check_items(items: list[Json]) -> None:
    """Raise InvalidRequest naming the first item that cannot be sent."""
    context = MessagesContext(strict=True)
    for n, item in enumerate(items):
        try:
            context.take(item)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=f"input[{n}].{error.param}", code=error.code) from error


def render(call: ModelCall, upstream: Upstream, *, with_thoughts: bool = True) -> tuple[Json, bool]:
    """Render the body to send, and a flag that thoughts are in it. Raises InvalidRequest naming what cannot be sent."""
    request, resume = call.request, call.resume
    # No API takes a text to be continued together with thoughts.
    context = MessagesContext(inline=upstream.developer_role, with_thoughts=with_thoughts and resume is None)
    context.take_all(request.instructions, call.items)
    context.end(resume.text if resume is not None else None)
    limit = request.max_output_tokens or upstream.default_max_tokens
    body: Json = {
        **request.extra,  # first, because extras never override what is set here (D13)
        "model": call.model,
        "max_tokens": max(1, limit - (resume.deltas if resume is not None else 0)),
        "messages": context.messages,
        "stream": True,
    }
    if context.system:
        body["system"] = "\n\n".join(context.system)
    body |= _render_hints(request) | _render_tools(request, list(context.names))
    if resume is None:
        # In the middle of a turn whose thoughts are left out, a budget would be refused.
        body |= _render_thinking(request, upstream, body, may_think=with_thoughts)
    if (form := request.text.get("format") or {}).get("type") == "json_schema":
        shape = {"type": "json_schema", "schema": fit(form["schema"])}
        body["output_config"] = {**body.get("output_config", {}), "format": shape}
    if upstream.prompt_cache and not context.has_marks:
        body["cache_control"] = render_cache(_read_ttl(request))
    return body, context.has_thoughts


def count_body(body: Json) -> Json:
    """Return the request that counts the tokens of this one: without the fields about the answer."""
    kept = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
    return {name: body[name] for name in kept if name in body}


def _read_ttl(request: CreateResponse) -> object:
    return request.prompt_cache_retention or (request.prompt_cache_options or {}).get("ttl")


def _render_hints(request: CreateResponse) -> Json:
    fields: Json = {name: value for name in ("temperature", "top_p") if (value := getattr(request, name)) is not None}
    if request.service_tier is not None:
        fields["service_tier"] = "standard_only" if request.service_tier in ("default", "flex") else "auto"
    if user := request.safety_identifier or request.user:
        fields["metadata"] = {"user_id": user[:_MOST_USER]}
    return fields


def _render_thinking(request: CreateResponse, upstream: Upstream, body: Json, *, may_think: bool) -> Json:
    """Render how much to think, and whether to show it."""
    wish = request.reasoning or {}
    effort, shown = wish.get("effort"), wants_summary(request)
    display = {"display": "summarized"} if shown else {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if upstream.thinking == "budget" or (upstream.thinking == "auto" and _BUDGETED.search(str(body["model"]))):
        forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
        budget = min(BUDGETS[effort], body["max_tokens"] * 3 // 4) if effort else 0  # a quarter is for the answer
        if forced or not may_think or max(budget, LEAST_BUDGET) >= body["max_tokens"] or not effort:
            return {}
        return {"thinking": {"type": "enabled", "budget_tokens": max(budget, LEAST_BUDGET), **display}}
    if not effort and not shown:
        return {}
    fields: Json = {"thinking": {"type": "adaptive", **display}}
    if effort:
        fields["output_config"] = {"effort": _EFFORTS.get(effort, effort)}
    return fields


def _render_tools(request: CreateResponse, called: list[str]) -> Json:
    tools, choice = select_tools(request)
    if not tools:
        # With calls in the context the API wants tools to be declared, though none may be called.
        declared = [{"name": name, "input_schema": {"type": "object"}} for name in called]
        return {"tools": declared, "tool_choice": {"type": "none"}} if declared else {}
    fields: Json = {"tools": [_render_tool(tool) for tool in tools]}
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "tool", "name": choice["name"]}
    elif choice != "auto":
        fields["tool_choice"] = {"type": _CHOICES[choice]}
    if request.parallel_tool_calls is False and choice != "none":
        fields["tool_choice"] = {**fields.get("tool_choice", {"type": "auto"}), "disable_parallel_tool_use": True}
    return fields


def _render_tool(tool: Json) -> Json:
    if tool["type"] == "custom":
        description, schema = describe_custom(tool)
    else:
        description, schema = tool.get("description") or "", {"type": "object", **(tool.get("parameters") or {})}
    rendered: Json = {"name": tool["name"], "input_schema": fit(schema) if tool.get("strict") else schema}
    if description:
        rendered["description"] = description
    if tool.get("strict"):
        rendered["strict"] = True
    return rendered
