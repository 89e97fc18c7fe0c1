"""Tools that the model may call, and which of them it may, must or must not."""

from __future__ import annotations

from collections.abc import Callable

from outlive.core.events import Json
from outlive.core.requests.checks import (
    check_bool,
    check_enum,
    check_list,
    check_name,
    check_object,
    check_str,
    refuse,
    refuse_missing,
    refuse_type,
    shorten,
)
from outlive.core.requests.limits import Limits
from outlive.core.requests.mcp_servers import parse_server

MAX_TOOL_NAME = 128
MAX_ALLOWED = 128

_MODES = ("none", "auto", "required")
_ALLOWED_MODES = ("auto", "required")
_SYNTAXES = ("lark", "regex")
_CHAT_HINT = " Tools are flat here: 'name' and 'parameters' stand beside 'type', not inside 'function'."


def parse_tools(value: object, limits: Limits) -> list[Json]:
    tools = check_list(value, "tools", limits.max_tools, "tools")
    return [_parse_tool(tool, f"tools[{n}]", limits) for n, tool in enumerate(tools)]


def parse_tool_choice(value: object, tools: list[Json]) -> str | Json:
    if type(value) is str:
        check_enum(value, "tool_choice", _MODES)
        if value == "required" and not tools:
            refuse("'tool_choice' cannot be 'required' when there are no tools.", "tool_choice")
        return value
    if type(value) is not dict:
        refuse_type(value, "tool_choice", "a string or an object")
    if value.get("type") == "allowed_tools":
        return _parse_allowed(value, tools)
    _check_named(value, "tool_choice", tools)
    return value


def _parse_tool(value: object, param: str, limits: Limits) -> Json:
    tool = check_object(value, param)
    if tool.get("type") is None:
        refuse_missing(f"{param}.type")
    kind = check_str(tool["type"], f"{param}.type", least=1, most=MAX_TOOL_NAME)
    parse = _TOOLS.get(kind)
    # Whoever runs the other kinds, this server or the model's, knows what they must look like; and whoever runs none
    # of them refuses them by their type (see Backend.check).
    return tool if parse is None else parse(tool, param, limits)


def _parse_function(tool: Json, param: str, limits: Limits) -> Json:
    name = _parse_name(tool, param)
    description = _parse_description(tool, param, limits)
    parameters, strict = tool.get("parameters"), tool.get("strict")
    if parameters is not None:
        check_object(parameters, f"{param}.parameters")
    strict = False if strict is None else check_bool(strict, f"{param}.strict")
    known = {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": strict}
    return {**known, **tool, "strict": strict}


def _parse_custom(tool: Json, param: str, limits: Limits) -> Json:
    name = _parse_name(tool, param)
    description = _parse_description(tool, param, limits)
    form = tool.get("format")
    form = {"type": "text"} if form is None else _parse_custom_format(form, f"{param}.format", limits)
    return {"type": "custom", "name": name, "description": description, **tool, "format": form}


def _parse_custom_format(value: object, param: str, limits: Limits) -> Json:
    form = check_object(value, param)
    if form.get("type") is None:
        refuse_missing(f"{param}.type")
    if check_enum(form["type"], f"{param}.type", ("text", "grammar")) == "grammar":
        for name in ("syntax", "definition"):
            if form.get(name) is None:
                refuse_missing(f"{param}.{name}")
        check_enum(form["syntax"], f"{param}.syntax", _SYNTAXES)
        check_str(form["definition"], f"{param}.definition", most=limits.max_text)
    return form


def _parse_name(tool: Json, param: str) -> str:
    name = tool.get("name")
    if name is None:
        refuse_missing(f"{param}.name", _CHAT_HINT if "function" in tool else "")
    return check_name(name, f"{param}.name", MAX_TOOL_NAME)


def _parse_description(tool: Json, param: str, limits: Limits) -> str | None:
    description = tool.get("description")
    return None if description is None else check_str(description, f"{param}.description", most=limits.max_text)


def _parse_allowed(choice: Json, tools: list[Json]) -> Json:
    mode = choice.get("mode")
    mode = "auto" if mode is None else check_enum(mode, "tool_choice.mode", _ALLOWED_MODES)
    if choice.get("tools") is None:
        refuse_missing("tool_choice.tools")
    allowed = check_list(choice["tools"], "tool_choice.tools", MAX_ALLOWED, "tools")
    if not allowed:
        refuse("'tool_choice.tools' must name a tool at least.", "tool_choice.tools", "empty_array")
    for n, named in enumerate(allowed):
        _check_named(named, f"tool_choice.tools[{n}]", tools)
    return {**choice, "mode": mode}


def _check_named(value: object, param: str, tools: list[Json]) -> None:
    """A choice must point at one of the request's own tools, or the upstream would refuse it later."""
    choice = check_object(value, param)
    if choice.get("type") is None:
        refuse_missing(f"{param}.type")
    kind = check_str(choice["type"], f"{param}.type")
    field = _NAMED_BY.get(kind)
    if field is None:
        # Hosted tools are chosen by their type alone, which may be an older spelling (`web_search_preview`).
        if not any(_is_kin(kind, tool["type"]) for tool in tools):
            refuse(f"'{param}' names the tool '{shorten(kind)}', which is not among 'tools'.", f"{param}.type")
        return
    name = choice.get(field)
    if name is None:
        refuse_missing(f"{param}.{field}", _CHAT_HINT if "function" in choice else "")
    check_str(name, f"{param}.{field}")
    if not any(tool.get(field) == name and tool["type"] == kind for tool in tools):
        refuse(f"'{param}' names the {kind} tool '{shorten(name)}', which is not among 'tools'.", f"{param}.{field}")


def _is_kin(kind: str, other: str) -> bool:
    return kind == other or kind.startswith(f"{other}_") or other.startswith(f"{kind}_")


_TOOLS: dict[str, Callable[[Json, str, Limits], Json]] = {
    "function": _parse_function,
    "custom": _parse_custom,
    "mcp": parse_server,
}

# The field by which a choice names one of several tools of a kind.
_NAMED_BY = {"function": "name", "custom": "name", "namespace": "name", "mcp": "server_label"}
