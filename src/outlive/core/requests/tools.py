"""Tools that the model may call, those of MCP servers among them, which it may, must or must not call, and the secrets
in them, which are split off before anything of the request is kept or shown."""

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, field

from outlive.core.events import Json
from outlive.core.requests import checks
from outlive.core.requests.checks import Given, Limits, Text, WrongField, one_of, shape, some

_CHAT_HINT = " Tools are flat here: 'name' and 'parameters' stand beside 'type', not inside 'function'."
# The field by which a choice names one of several tools of a kind.
_NAMED_BY = {"function": "name", "custom": "name", "namespace": "name", "mcp": "server_label"}

ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
ToolNames = Annotated[list[ToolName], some("names", "max_tools")]
Address = Annotated[str, Meta(min_length=1, max_length=4096)]
Secret = Annotated[str, Meta(max_length=16 * 1024)]


def hint_at_chat(tool: Json) -> str:
    return _CHAT_HINT if "function" in tool else ""


PlainInput = shape("PlainInput", "Any text, as the input of a custom tool.", type=Literal["text"])


class GrammarInput(Struct):
    """Text of a grammar, as the input of a custom tool."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Text


def _put_first(*names: str) -> Callable[[Json], None]:
    """Make the function that puts these fields first, in this order: responses show tools that way."""

    def put_first(tool: Json) -> None:
        ordered = {name: tool[name] for name in names} | tool
        tool.clear()
        tool.update(ordered)

    return put_first


class NamedTool(Struct, kw_only=True):
    name: Annotated[str, checks.name_of(128)]
    description: Text | None = None

    hint = staticmethod(hint_at_chat)
    complete = staticmethod(_put_first("type", "name", "description"))


class FunctionToolParam(NamedTool, kw_only=True):
    """A function that the client carries out."""

    type: Literal["function"]
    parameters: Json | None = None
    strict: bool = False

    complete = staticmethod(_put_first("type", "name", "description", "parameters", "strict"))


class CustomToolParam(NamedTool, kw_only=True):
    """A tool of one text that the client carries out."""

    type: Literal["custom"]
    format: Annotated[Json, one_of(PlainInput, GrammarInput)] = field(default_factory=lambda: {"type": "text"})


class ToolFilter(Struct):
    """Tools of these names, and of those only the ones that read, or that do not."""

    tool_names: Given[ToolNames] = UNSET
    read_only: Given[bool] = UNSET


class ApprovalFilter(Struct):
    """The tools that a person is always asked about, and those that never need it."""

    always: Given[ToolNames | ToolFilter] = UNSET
    never: Given[ToolNames | ToolFilter] = UNSET


# Headers that belong to the connection: a caller who could set them would change where a request goes, or ends.
_FORBIDDEN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})


class McpToolParam(Struct, kw_only=True):
    """The tools of an MCP server, called by this server or by the model's."""

    type: Literal["mcp"]
    server_label: Annotated[str, checks.name_of(64)]
    server_url: Given[Address] = UNSET
    connector_id: Given[Address] = UNSET
    tunnel_id: Given[Address] = UNSET
    server_description: Given[Secret] = UNSET
    authorization: Given[Secret] = UNSET
    headers: Given[Annotated[dict[ToolName, Secret], some("headers", 64)]] = UNSET
    allowed_tools: Given[ToolNames | ToolFilter] = UNSET
    require_approval: Given[Literal["always", "never"] | ApprovalFilter] = UNSET

    @staticmethod
    def complete(tool: Json) -> None:
        checks.drop_nulls(tool)
        for name in tool.get("headers", ()):
            if name.lower() in _FORBIDDEN_HEADERS:
                path = f".headers.{checks.shorten(name)}"
                raise WrongField("is a header of the connection itself, and cannot be set.", path)


class OtherToolParam(Struct):
    """A tool that this server, or the model's, carries out. The one that does knows its other fields."""

    type: Annotated[str, Meta(min_length=1, max_length=128)]


Tool = Annotated[Json, one_of(FunctionToolParam, CustomToolParam, McpToolParam, other=OtherToolParam)]
Tools = Annotated[list[Tool], some("tools", "max_tools")]
check_tools = checks.make_check(Tools)


class Namespace(NamedTool, kw_only=True):
    """Tools of the client's, under a name of their own."""

    tools: Annotated[list[Annotated[Json, one_of(FunctionToolParam, CustomToolParam)]], some("tools", "max_tools")]


# Types of items whose tools can be called from there on. A tuple: the type of an old item may have no hash.
TOOL_BRINGERS = ("additional_tools", "tool_search_output")

# For upstreams that know no namespaces; others get them as they were given, and check them themselves.
check_namespace = checks.make_check(Namespace)
ToolChoice = Literal["none", "auto", "required"] | Json


class AllowedTools(Struct, kw_only=True):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[Json], some("tools", 128)]


_check_allowed = checks.make_check(AllowedTools)


def match_tool_choice(choice: str | Json, tools: list[Json], limits: Limits) -> str | Json:
    """Complete a choice that points at the request's own tools; refuse any other, as the upstream would later."""
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise WrongField("cannot be 'required' when there are no tools.", "tool_choice")
        return choice
    if choice.get("type") != "allowed_tools":
        _check_named(choice, "tool_choice", tools)
        return choice
    allowed: Json = checks.check_value(_check_allowed, choice, "tool_choice", limits)
    if not allowed["tools"]:
        raise WrongField("must name a tool at least.", "tool_choice.tools", "empty_array")
    for n, named in enumerate(allowed["tools"]):
        _check_named(named, f"tool_choice.tools[{n}]", tools)
    return allowed


def _check_named(choice: Json, param: str, tools: list[Json]) -> None:
    kind = _read_text(choice, "type", param)
    field = _NAMED_BY.get(kind)
    if field is None:
        # Hosted tools are chosen by their type alone, which may be an older spelling (`web_search_preview`).
        if not any(is_kin(kind, tool["type"]) for tool in tools):
            raise WrongField(f"names the tool '{checks.shorten(kind)}', which is not among 'tools'.", f"{param}.type")
        return
    name = _read_text(choice, field, param, hint_at_chat(choice))
    if (space := choice.get("namespace")) is not None:
        spaces = [tool for tool in tools if tool["type"] == "namespace" and tool.get("name") == space]
        tools = [member for each in spaces for member in _members(each)]
    if not any(tool.get(field) == name and tool["type"] == kind for tool in tools):
        raise WrongField(
            f"names the {kind} tool '{checks.shorten(name)}', which is not among 'tools'.", f"{param}.{field}"
        )


def _read_text(choice: Json, field: str, param: str, hint: str = "") -> str:
    value, path = choice.get(field), f"{param}.{field}"
    if value is None:
        checks.refuse_missing(path, hint)
    return value if type(value) is str else checks.refuse_type(value, path, "a string")


def _members(holder: Json) -> list[Json]:
    """Return the tools of a namespace, or of an item that brings some, as far as they are well-formed."""
    members = holder.get("tools")
    members = members if isinstance(members, list) else ()
    return [one for one in members if isinstance(one, dict) and isinstance(one.get("type"), str)]


def list_brought(items: list[Json]) -> list[Json]:
    return [tool for item in items if item.get("type") in TOOL_BRINGERS for tool in _members(item)]


def is_kin(kind: str, other: str) -> bool:
    """Return True if a choice of the one type means a tool of the other: there are older and newer spellings."""
    return kind == other or kind.startswith(f"{other}_") or other.startswith(f"{kind}_")


def allows(entry: Json, name: str, read_only: bool) -> bool:
    """Return True if the entry lets the model call a tool of its server."""
    allowed = entry.get("allowed_tools")
    return allowed is None or _matches(allowed, name, read_only)


def needs_approval(entry: Json, name: str, read_only: bool, default: str) -> bool:
    """Return True if a person is asked before the tool is called: also where both lists name it, or neither does."""
    wish = entry.get("require_approval", default)
    if isinstance(wish, str):
        return wish == "always"
    always, never = wish.get("always"), wish.get("never")
    if always is not None and _matches(always, name, read_only):
        return True
    return always is None if never is None else not _matches(never, name, read_only)


def _matches(wanted: list[str] | Json, name: str, read_only: bool) -> bool:
    if isinstance(wanted, list):
        return name in wanted
    names, reads = wanted.get("tool_names"), wanted.get("read_only")
    return (names is None or name in names) and (reads is None or reads == read_only)


# -- secrets

_SECRETS = ("headers", "authorization")

pack_secrets = msgspec.json.Encoder().encode
unpack_secrets = msgspec.json.Decoder(dict[str, Json]).decode


def split_secrets(tools: list[Json]) -> tuple[list[Json], dict[str, Json]]:
    """Return the tools without their secrets, and the secrets by the label of their server."""
    secrets: dict[str, Json] = {}
    clean: list[Json] = []
    for tool in tools:
        if tool["type"] == "mcp":
            tool = {**tool}
            if found := {name: value for name in _SECRETS if (value := tool.pop(name, None))}:
                secrets[tool["server_label"]] = found
        clean.append(tool)
    return clean, secrets


def purpose_of(response_id: str) -> str:
    """Name the purpose that secrets are sealed for: only this response can open them."""
    return f"secrets of the tools of {response_id}"
