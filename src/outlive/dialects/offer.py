"""The tools of a request as functions, for upstreams that know no other tools.

Functions keep their names. The members of a namespace, and the client's tools of a fixed form, get names of their own
that no other function of the request has; a call of one comes back as the item that its client expects. Hosted tools,
which are run neither by the client nor here, are refused or left out (`unrunnable_tools` of the upstream).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import WrongField, check_value, refuse_missing, refuse_unsupported, shorten
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.tools import brings_tools, check_namespace, check_tools, is_kin
from outlive.dialects.client_tools import CLIENT_TOOLS, ClientTool, adapt, client_tool_of
from outlive.ports.backend import Upstream

SEPARATOR = "__"  # between a namespace and the name of its member
MOST_NAME = 64  # characters
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")

# Types of hosted tools; `_preview` and a date may follow. `shell` and `tool_search` are hosted in some forms.
_is_hosted_type = re.compile(
    r"(?:web_search|file_search|code_interpreter|image_generation|programmatic_tool_calling)(?:_[a-z0-9_]+)?"
).fullmatch

_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


class Identity(NamedTuple):
    """The key by which a caller knows a tool: its type, and its name where it has one."""

    kind: str  # function, custom, or the function's name of a tool of a fixed form
    name: str
    namespace: str | None = None


Names = Mapping[Identity, str]


class CalledTool(msgspec.Struct, frozen=True):
    """A tool whose calls are more than calls of a plain function."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    client_tool: ClientTool | None = None


class Offer(msgspec.Struct, frozen=True):
    """The functions that the model is given, the choice among them, and the tools that they stand for."""

    functions: list[Json]
    choice: str | Json  # a mapping names a function
    names: Names  # of functions that are called otherwise than their tool
    called: dict[str, CalledTool]  # by the name of their function: all tools but plain functions


class _Found(NamedTuple):
    """A tool that the model can be given."""

    tool: Json
    kind: str
    namespace: str | None = None

    @property
    def identity(self) -> Identity:
        name = self.tool["name"] if self.kind in ("function", "custom") else self.kind
        return Identity(self.kind, name, self.namespace)


def make_offer(request: CreateResponse, items: Iterable[Json]) -> Offer:
    """Make the offer for a context. What cannot be offered is left out: `check_tools_of` has refused it by now, or it
    is in a history, which must not block a conversation."""
    brought = [item for item in items if brings_tools(item)]
    if not brought and _are_plain(request):
        return Offer(request.tools, request.tool_choice, {}, {})  # nearly all requests
    found: dict[Identity, _Found] = {}
    for each in _find_all(request, brought):
        found.setdefault(each.identity, each)
    tools, choice = _select(list(found.values()), request.tool_choice)
    names = _name(tools)
    functions = [_describe(each, names) for each in tools]
    called = {
        function["name"]: _as_called(each)
        for each, function in zip(tools, functions, strict=True)
        if each.kind != "function" or each.namespace is not None
    }
    if isinstance(choice, Identity):
        choice = {"type": "function", "name": names.get(choice, choice.name)}
    return Offer(functions, choice, names, called)


def name_of_call(item: Json, names: Names) -> str:
    """Return the name of the function that an item is a call of."""
    kind = str(item.get("type"))
    if (tool := client_tool_of(kind)) is not None:
        return names.get(Identity(tool.name, tool.name), tool.name)
    name, namespace = str(item.get("name")), item.get("namespace")
    if not isinstance(namespace, str):
        return name
    is_custom = kind == "custom_tool_call"
    return names.get(Identity("custom" if is_custom else "function", name, namespace)) or _join(namespace, name)


def describe_found(item: Json, names: Names) -> str:
    """Return the output of a search for tools as the model reads it: the functions that it can call now."""
    found = [each.identity for each in _find_brought(item)]
    called = [names.get(each) or (_join(each.namespace, each.name) if each.namespace else each.name) for each in found]
    return f"These tools can be called now: {', '.join(called)}" if called else "No tools were found."


# -- finding


def _are_plain(request: CreateResponse) -> bool:
    """Return True if the tools are functions that can be sent as they are, with the choice as it is."""
    choice = request.tool_choice
    if isinstance(choice, dict) and choice.get("type") != "function":
        return False
    return not request.tools or all(
        tool["type"] == "function" and not tool.get("defer_loading") for tool in request.tools
    )


def _find_all(request: CreateResponse, brought: list[Json]) -> Iterator[_Found]:
    searches = any(_kind_of(tool) == "tool_search" for tool in request.tools)
    for tool in request.tools:
        for found in _expand(tool):
            if not (searches and found.tool.get("defer_loading") is True):
                yield found
    for item in brought:
        yield from _find_brought(item)


def _find_brought(item: Json) -> Iterator[_Found]:
    """Yield the tools that an item brings, but those that are not well-formed: it may be of a history."""
    given = item.get("tools")
    for tool in given if isinstance(given, list) else ():
        with suppress(InvalidRequest):
            yield from _expand(*check_value(check_tools, [tool], "tools"))


def _expand(tool: Json) -> Iterator[_Found]:
    if tool["type"] == "namespace":
        space = check_value(check_namespace, tool, "tools")
        for member in space["tools"]:
            yield _Found(member, member["type"], space["name"])
    elif (kind := _kind_of(tool)) is not None:
        yield _Found(tool, kind)


def _kind_of(tool: Json) -> str | None:
    """Return the kind of a single tool that the client runs; None for all others."""
    kind = str(tool["type"])
    if kind in ("function", "custom"):
        return kind
    if kind == "tool_search" and tool.get("execution") != "client":
        return None
    if kind == "shell" and not _is_local(tool.get("environment")):
        return None
    return CLIENT_TOOLS[kind].name if kind in CLIENT_TOOLS else None


def _is_local(environment: object) -> bool:
    return not isinstance(environment, dict) or environment.get("type") in (None, "local")


def is_hosted(tool: Json) -> bool:
    """Return True for a tool that a provider of models runs for its own."""
    kind = str(tool["type"])
    if kind == "function":
        return False
    return _is_hosted_type(kind) is not None or (kind in ("shell", "tool_search") and _kind_of(tool) is None)


# -- choosing


def _select(tools: list[_Found], choice: str | Json) -> tuple[list[_Found], str | Json | Identity]:
    """Return the tools to send, and the choice among them. A tool that is not allowed is not sent, so that it cannot
    be called."""
    if isinstance(choice, str):
        return tools, choice
    if choice.get("type") == "allowed_tools":
        allowed = [each for each in tools if any(_is_named(each, entry) for entry in choice["tools"])]
        return allowed, choice.get("mode") or "auto"
    named = [each for each in tools if _is_named(each, choice)]
    if choice.get("type") == "namespace":
        return named, "required"
    return tools, named[0].identity if named else "auto"


def _is_named(found: _Found, choice: Json) -> bool:
    kind = str(choice.get("type"))
    if kind == "namespace":
        return found.namespace == choice.get("name")
    if kind in ("function", "custom"):
        return found.identity == Identity(kind, str(choice.get("name")), choice.get("namespace"))
    return found.namespace is None and is_kin(kind, str(found.tool["type"]))


# -- naming and describing


def _name(tools: list[_Found]) -> dict[Identity, str]:
    taken = {each.tool["name"] for each in tools if _is_plain(each)}
    names: dict[Identity, str] = {}
    for each in tools:
        if _is_plain(each):
            continue
        identity = each.identity
        wish = identity.name if identity.namespace is None else _join(identity.namespace, identity.name)
        hashed = _shorten(wish, "\n".join(map(str, identity)))
        numbered = (f"{hashed[: MOST_NAME - 4]}_{number}" for number in itertools.count(2))
        names[identity] = next(name for name in itertools.chain([wish, hashed], numbered) if name not in taken)
        taken.add(names[identity])
    return names


def _is_plain(found: _Found) -> bool:
    return found.namespace is None and found.kind in ("function", "custom")


def _join(namespace: str, name: str) -> str:
    """Return the name of a namespace's member: the same in every turn, whatever else is offered."""
    joined = _UNSAFE.sub("_", f"{namespace}{SEPARATOR}{name}")
    return joined if len(joined) <= MOST_NAME else _shorten(joined, f"{namespace}\n{name}")


def _shorten(name: str, whole: str) -> str:
    digest = sha256(whole.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{digest}"


def _describe(found: _Found, names: Names) -> Json:
    """Return the function that stands for a tool."""
    tool, kind = found.tool, found.kind
    if kind == "function":
        return tool if found.namespace is None else {**tool, "name": names[found.identity]}
    name = names.get(found.identity, found.identity.name)
    if kind == "custom":
        return {"type": "function", "name": name, "description": _describe_input(tool), "parameters": _INPUT}
    made = adapt(CLIENT_TOOLS[tool["type"]], tool)
    return {"type": "function", "name": name, "description": made.description, "parameters": made.parameters}


def _describe_input(tool: Json) -> str:
    form, description = tool.get("format") or {}, tool.get("description") or ""
    if form.get("type") != "grammar":
        return description
    # Such servers cannot enforce it, but the model can read it.
    grammar = f"The input must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"
    return f"{description}\n\n{grammar}" if description else grammar


def _as_called(found: _Found) -> CalledTool:
    if found.kind in ("function", "custom"):
        return CalledTool(found.tool["name"], found.namespace, is_custom=found.kind == "custom")
    return CalledTool(found.identity.name, client_tool=CLIENT_TOOLS[found.tool["type"]])


# -- checking


def check_tools_of(request: CreateResponse, upstream: Upstream) -> None:
    """Raise InvalidRequest, naming the parameter, for a tool that this upstream's model cannot be given."""
    if given := _given(request):
        _Check(request, upstream).run(given)


def find_left_out(request: CreateResponse) -> list[str]:
    """Return the types of the hosted tools that a checked request has, each once."""
    given = [tool for _, tools in _given(request) for tool in tools]
    return list(dict.fromkeys(str(tool["type"]) for tool in given if is_hosted(tool))) if given else []


def _given(request: CreateResponse) -> list[tuple[str, list[Json]]]:
    """Return the lists of tools in a request, with their paths."""
    given = [("tools", request.tools)] if request.tools else []
    for n, item in enumerate(request.input):
        if brings_tools(item):
            path = f"input[{n}].tools"
            given.append((path, item["tools"] if "tools" in item else refuse_missing(path)))
    return given


class _Check:
    def __init__(self, request: CreateResponse, upstream: Upstream) -> None:
        self._request = request
        self._refuses = upstream.unrunnable_tools == "refuse"
        # A search of the client's loads deferred tools; without one that is left out they are given from the start.
        self._loads = any(tool["type"] == "tool_search" for tool in request.tools)

    def run(self, given: list[tuple[str, list[Json]]]) -> None:
        for path, listed in given:
            found = path != "tools"
            tools = check_value(check_tools, listed, path) if found else listed
            for n, tool in enumerate(tools):
                self._check(tool, f"{path}[{n}]", found=found)
        self._check_choice()

    def _check(self, tool: Json, path: str, *, found: bool) -> None:
        if tool["type"] == "namespace":
            for n, member in enumerate(check_value(check_namespace, tool, path)["tools"]):
                self._check_function(member, f"{path}.tools[{n}]", found)
        elif is_hosted(tool):
            if self._refuses:
                self._refuse_type(tool, path, "no server here runs them. One that speaks Responses and has them can")
        elif _kind_of(tool) is None:
            self._refuse_type(tool, path, "this server does not know them. One that speaks Responses may")
        else:
            self._check_function(tool, path, found)

    def _refuse_type(self, tool: Json, path: str, why: str) -> None:
        refuse_unsupported(
            f"{path}.type", f"'{shorten(str(tool['type']))}' tools cannot be used with this model: {why}."
        )

    def _check_function(self, tool: Json, path: str, found: bool) -> None:
        if tool.get("async") is True:
            why = "this model's server waits for the output of every call. Leave it out, or answer the call at once."
            refuse_unsupported(f"{path}.async", why)
        if tool.get("defer_loading") is True and not found and not self._loads:
            why = "a function that is loaded later needs a 'tool_search' tool that finds it."
            refuse_unsupported(f"{path}.defer_loading", why)

    def _check_choice(self) -> None:
        """Refuse a choice of a tool that the model is not given."""
        choice = self._request.tool_choice
        if choice in ("auto", "none"):
            return
        offer = make_offer(self._request, self._request.input)
        may_not_call = isinstance(choice, dict) and choice.get("type") == "allowed_tools"
        is_met = bool(offer.functions) if offer.choice == "required" else may_not_call or offer.choice != "auto"
        if not is_met:
            left_out = ", ".join(f"'{kind}'" for kind in find_left_out(self._request)) or "it is loaded later"
            raise WrongField(f"asks for a tool that this model is not given here ({left_out}).", "tool_choice")
