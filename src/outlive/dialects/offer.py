"""The tools of a request as functions, for upstreams that know no other tools.

Functions keep their names. The members of a namespace, and the client's tools of a fixed form, get names of their own
that no other function of the request has; a call of one comes back as the item that its client expects. Hosted tools,
which are run neither by the client nor here, are refused or left out (`unrunnable_tools` of the upstream).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import chain, count
from typing import NamedTuple

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import WrongField, check_value, refuse_missing, refuse_unsupported, shorten
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.tools import TOOL_BRINGERS, check_namespace, check_tools, is_kin
from outlive.dialects.client_tools import BY_ITEM, CLIENT_TOOLS, ClientTool
from outlive.ports.backend import Upstream

SEPARATOR = "__"  # between a namespace and the name of its member
MOST_NAME = 64  # characters
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")

# Types of hosted tools; `_preview` and a date may follow. `shell` and `tool_search` are hosted in some forms.
_is_hosted_type = re.compile(
    r"(?:web_search|file_search|code_interpreter|image_generation|programmatic_tool_calling)(?:_[a-z0-9_]+)?"
).fullmatch

_TEXT: Json = {"type": "string", "description": "The whole input of the tool, as plain text."}
_INPUT: Json = {"type": "object", "properties": {"input": _TEXT}, "required": ["input"], "additionalProperties": False}


class Identity(NamedTuple):
    """The key by which a caller knows a tool: its type, and its name where it has one."""

    kind: str  # function, custom, or the function's name of a tool of a fixed form
    name: str
    namespace: str | None = None


Names = Mapping[Identity, str]


class CalledTool(NamedTuple):
    """A tool that the model can call."""

    tool: Json
    identity: Identity
    client_tool: ClientTool | None = None  # where it has a fixed form

    @property
    def is_plain(self) -> bool:
        """True if its function has the tool's own name."""
        return self.identity.namespace is None and self.client_tool is None


class Offer(msgspec.Struct, frozen=True):
    """The functions that the model is given, the choice among them, and the tools that they stand for."""

    functions: list[Json]
    choice: str | Json  # a mapping names a function
    names: Names  # of functions that are called otherwise than their tool
    called: dict[str, CalledTool]  # by the name of their function: all tools but plain functions


def make_offer(request: CreateResponse, items: Iterable[Json]) -> Offer:
    """Make the offer for a context. What cannot be offered is left out: `check_tools_of` has refused it by now, or it
    is in a history, which must not block a conversation."""
    brought = [item for item in items if item.get("type") in TOOL_BRINGERS]
    is_plain = not isinstance(request.tool_choice, dict) or request.tool_choice.get("type") == "function"
    given = request.tools
    can_send = not given or all(each["type"] == "function" and not each.get("defer_loading") for each in given)
    if can_send and is_plain and not brought:
        return Offer(given, request.tool_choice, {}, {})  # nearly all requests: they can be sent as they are
    searches = any(_kind_of(tool) == "tool_search" for tool in given)
    found: dict[Identity, CalledTool] = {}
    for each in chain(*map(_expand, given)):
        if not (searches and each.tool.get("defer_loading") is True):
            found.setdefault(each.identity, each)
    for each in chain(*map(_find_brought, brought)):
        found.setdefault(each.identity, each)
    tools, choice = _select(list(found.values()), request.tool_choice)
    names = _name(tools)
    functions = [_describe(each, names) for each in tools]
    called = {
        function["name"]: each
        for each, function in zip(tools, functions, strict=True)
        if each.identity.kind != "function" or each.identity.namespace is not None
    }
    if isinstance(choice, Identity):
        choice = {"type": "function", "name": names.get(choice, choice.name)}
    return Offer(functions, choice, names, called)


def name_of_call(item: Json, names: Names) -> str:
    """Return the name of the function that an item is a call of."""
    kind = str(item.get("type"))
    if (tool := BY_ITEM.get(kind)) is not None:
        return names.get(Identity(tool.name, tool.name), tool.name)
    name, namespace = str(item.get("name")), item.get("namespace")
    if not isinstance(namespace, str):
        return make_safe(name)
    is_custom = kind == "custom_tool_call"
    return names.get(Identity("custom" if is_custom else "function", name, namespace)) or _join(namespace, name)


def make_safe(name: str) -> str:
    """Return the name of a function as every server takes it: a stored call may have any."""
    return _UNSAFE.sub("_", name) or "_"


def describe_found(item: Json, names: Names) -> str:
    """Return the output of a search for tools as the model reads it: the functions that it can call now."""
    found = [each.identity for each in _find_brought(item)]
    called = [names.get(each) or (_join(each.namespace, each.name) if each.namespace else each.name) for each in found]
    return f"These tools can be called now: {', '.join(called)}" if called else "No tools were found."


# -- finding


def _find_brought(item: Json) -> Iterator[CalledTool]:
    """Yield the tools that an item brings, but those that are not well-formed: it may be of a history."""
    given = item.get("tools")
    for tool in given if isinstance(given, list) else ():
        with suppress(InvalidRequest):
            yield from _expand(*check_value(check_tools, [tool], "tools"))


def _expand(tool: Json) -> Iterator[CalledTool]:
    if tool["type"] == "namespace":
        space = check_value(check_namespace, tool, "tools")
        for member in space["tools"]:
            yield CalledTool(member, Identity(member["type"], member["name"], space["name"]))
    elif (kind := _kind_of(tool)) is not None:
        client_tool = CLIENT_TOOLS.get(tool["type"])
        yield CalledTool(tool, Identity(kind, kind if client_tool else tool["name"]), client_tool)


def _kind_of(tool: Json) -> str | None:
    """Return the kind of a single tool that the client runs; None for all others."""
    kind = str(tool["type"])
    if kind in ("function", "custom"):
        return kind
    environment = tool.get("environment") if kind == "shell" else None
    is_local = not isinstance(environment, dict) or environment.get("type") in (None, "local")
    if not is_local or (kind == "tool_search" and tool.get("execution") != "client"):
        return None
    return CLIENT_TOOLS[kind].name if kind in CLIENT_TOOLS else None


def is_hosted(tool: Json) -> bool:
    """Return True for a tool that a provider of models runs for its own."""
    kind = str(tool["type"])
    return _is_hosted_type(kind) is not None or (kind in ("shell", "tool_search") and _kind_of(tool) is None)


# -- choosing


def _select(tools: list[CalledTool], choice: str | Json) -> tuple[list[CalledTool], str | Json | Identity]:
    """Return the tools to send, and the choice among them. A tool that is not allowed is not sent."""
    if isinstance(choice, str):
        return tools, choice
    if choice.get("type") == "allowed_tools":
        allowed = [each for each in tools if any(_is_named(each, entry) for entry in choice["tools"])]
        return allowed, choice.get("mode") or "auto"
    named = [each for each in tools if _is_named(each, choice)]
    if choice.get("type") == "namespace":
        return named, "required"
    return tools, named[0].identity if named else "auto"


def _is_named(found: CalledTool, choice: Json) -> bool:
    kind = str(choice.get("type"))
    if kind == "namespace":
        return found.identity.namespace == choice.get("name")
    if kind in ("function", "custom"):
        return found.identity == Identity(kind, str(choice.get("name")), choice.get("namespace"))
    return found.identity.namespace is None and is_kin(kind, str(found.tool["type"]))


# -- naming and describing


def _name(tools: list[CalledTool]) -> dict[Identity, str]:
    taken = {each.identity.name for each in tools if each.is_plain}
    names: dict[Identity, str] = {}
    for identity in (each.identity for each in tools if not each.is_plain):
        wish = identity.name if identity.namespace is None else _join(identity.namespace, identity.name)
        hashed = _shorten(wish, "\n".join(map(str, identity)))
        numbered = (f"{hashed[: MOST_NAME - 4]}_{number}" for number in count(2))
        names[identity] = next(name for name in chain([wish, hashed], numbered) if name not in taken)
        taken.add(names[identity])
    return names


def _join(namespace: str, name: str) -> str:
    """Return the name of a namespace's member: the same in every turn, whatever else is offered."""
    joined = make_safe(f"{namespace}{SEPARATOR}{name}")
    return joined if len(joined) <= MOST_NAME else _shorten(joined, f"{namespace}\n{name}")


def _shorten(name: str, whole: str) -> str:
    digest = sha256(whole.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{digest}"


def _describe(found: CalledTool, names: Names) -> Json:
    """Return the function that stands for a tool."""
    tool, name = found.tool, names.get(found.identity, found.identity.name)
    if found.identity.kind == "function":
        return tool if found.is_plain else {**tool, "name": name}
    description, parameters = tool.get("description") or "", _INPUT
    if found.client_tool is not None:
        description, parameters = found.client_tool.describe(tool)
    elif (form := tool.get("format") or {}).get("type") == "grammar":
        # Such servers cannot enforce it, but the model can read it.
        grammar = f"The input must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"
        description = f"{description}\n\n{grammar}" if description else grammar
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


# -- checking


def check_tools_of(request: CreateResponse, upstream: Upstream) -> None:
    """Raise InvalidRequest, naming the parameter, for a tool or a choice that this upstream's model cannot be given."""
    if not (given := _given(request)):
        return
    # A search of the client's loads deferred tools; without one that is left out they are given from the start.
    loads = any(tool["type"] == "tool_search" for tool in request.tools)
    for path, listed in given:
        is_found = path != "tools"
        for n, tool in enumerate(check_value(check_tools, listed, path) if is_found else listed):
            if upstream.unrunnable_tools == "refuse" or not is_hosted(tool):
                _check_tool(tool, f"{path}[{n}]", may_defer=is_found or loads)
    choice = request.tool_choice
    if choice in ("auto", "none"):
        return
    offer = make_offer(request, request.input)
    may_not_call = isinstance(choice, dict) and choice.get("type") == "allowed_tools"
    is_met = bool(offer.functions) if offer.choice == "required" else may_not_call or offer.choice != "auto"
    if not is_met:
        left_out = ", ".join(f"'{kind}'" for kind in find_left_out(request)) or "it is loaded later"
        raise WrongField(f"asks for a tool that this model is not given here ({left_out}).", "tool_choice")


def find_left_out(request: CreateResponse) -> list[str]:
    """Return the types of the hosted tools that a checked request has, each once."""
    hosted = [str(tool["type"]) for _, tools in _given(request) for tool in tools if is_hosted(tool)]
    return list(dict.fromkeys(hosted)) if hosted else hosted


def _given(request: CreateResponse) -> list[tuple[str, list[Json]]]:
    """Return the lists of tools in a request, with their paths."""
    given = [("tools", request.tools)] if request.tools else []
    for n, item in enumerate(request.input):
        if item.get("type") in TOOL_BRINGERS:
            path = f"input[{n}].tools"
            given.append((path, item["tools"] if "tools" in item else refuse_missing(path)))
    return given


def _check_tool(tool: Json, path: str, *, may_defer: bool) -> None:
    functions = {path: tool}
    if tool["type"] == "namespace":
        members = check_value(check_namespace, tool, path)["tools"]
        functions = {f"{path}.tools[{n}]": member for n, member in enumerate(members)}
    elif _kind_of(tool) is None:
        why = "this server does not know them. One that speaks Responses may"
        if is_hosted(tool):
            why = "no server here runs them. One that speaks Responses and has them can"
        kind = shorten(str(tool["type"]))
        refuse_unsupported(f"{path}.type", f"'{kind}' tools cannot be used with this model: {why}.")
    for place, function in functions.items():
        if function.get("async") is True:
            why = "this model's server waits for the output of every call. Leave it out, or answer the call at once."
            refuse_unsupported(f"{place}.async", why)
        if function.get("defer_loading") is True and not may_defer:
            why = "a function that is loaded later needs a 'tool_search' tool that finds it."
            refuse_unsupported(f"{place}.defer_loading", why)
