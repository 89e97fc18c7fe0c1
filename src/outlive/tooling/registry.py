"""The registry of tools: all sources of tools that this server has, behind the one toolbox that runs use."""

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Protocol

import msgspec

from outlive.core.events import Json
from outlive.core.requests.checks import refuse
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.tools import allows, needs_approval
from outlive.core.toolcalls import SERVER_TOOL_TYPE, ToolSpec
from outlive.ports.toolbox import SessionRequest, Tool, ToolSession

MAX_NAME = 64  # the longest name of a function that every model's server accepts
MAX_ENTRIES = 32  # servers of tools in one request: a connection is opened to each

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_type_of = itemgetter("type")


class OpenedSource(msgspec.Struct, frozen=True):
    """The tools that a source has for one entry of a request's tools."""

    tools: Sequence[Tool]  # `needs_approval` is set in a copy for each request
    approval: str  # `always` or `never`: holds where the entry does not say
    listed: Json | None = None  # the `mcp_list_tools` item to show for it, with an id
    close: Callable[[], Awaitable[None]] | None = None
    insists: bool = False  # True: each call needs an approval, whatever the entry says


class ToolSource(Protocol):
    """A source of tools: functions of this server's own, or MCP servers."""

    def owns(self, entry: Json) -> bool:
        """Return True if an entry of a request's tools is for this source. The first source that owns it serves it."""

    def check(self, entry: Json, param: str) -> None:
        """Raise InvalidRequest for an entry that is for this source, but cannot be served."""

    async def open(self, entry: Json, session_request: SessionRequest) -> OpenedSource:
        """Open the tools of one entry. Raises UpstreamFault when the source cannot be reached."""


class OpenToolSession(msgspec.Struct):
    """The tools of one run."""

    opened: list[OpenedSource]
    tools: dict[str, Tool] = {}
    lists: list[Json] = []

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self.opened if each.close), return_exceptions=True)


class ToolRegistry(msgspec.Struct):
    """Routes each entry of a request's tools to its source."""

    sources: Sequence[ToolSource]
    always: Sequence[Json] = ()  # entries that every request has, unless it has one of that label

    def check(self, request: CreateResponse) -> None:
        labels: set[str] = set()
        for n, entry in enumerate(request.tools):
            if entry["type"] != SERVER_TOOL_TYPE:
                continue
            label = entry["server_label"]
            if label in labels:
                refuse(f"Two entries of 'tools' have the label '{label}'.", f"tools[{n}].server_label")
            labels.add(label)
            if len(labels) > MAX_ENTRIES:
                refuse(f"A request may name at most {MAX_ENTRIES} servers of tools.", f"tools[{n}]")
            source = self._find(entry)
            if source is None:
                refuse(f"This server has no tools with the label '{label}'.", f"tools[{n}].server_label")
            source.check(entry, f"tools[{n}]")

    def serves(self, request: CreateResponse) -> bool:
        if self.always or SERVER_TOOL_TYPE in map(_type_of, request.tools):
            return True
        # An approval of a call whose tools this request leaves out: the call then fails, visibly.
        return "mcp_approval_response" in map(_type_of, request.input)

    async def open(self, session_request: SessionRequest) -> ToolSession:
        given = session_request.request.tools
        taken = {str(tool.get("name")): 1 for tool in given if tool["type"] != SERVER_TOOL_TYPE}
        entries = [tool for tool in given if tool["type"] == SERVER_TOOL_TYPE]
        labels = {entry["server_label"] for entry in entries}
        entries += [entry for entry in self.always if entry["server_label"] not in labels]
        found = [(entry, source) for entry in entries if (source := self._find(entry)) is not None]
        # All at once: a server that does not answer must not add its time to that of the next.
        opening = [asyncio.ensure_future(source.open(entry, session_request)) for entry, source in found]
        opened: list[OpenedSource] = []
        try:
            opened = await asyncio.gather(*opening)
        finally:
            if not opened:
                # Cancel what is still being opened, and close what is open already.
                for task in opening:
                    task.cancel()
                results = await asyncio.gather(*opening, return_exceptions=True)
                await OpenToolSession([each for each in results if isinstance(each, OpenedSource)]).close()
        session = OpenToolSession(opened, lists=[each.listed for each in opened if each.listed is not None])
        for (entry, _), each in zip(found, opened, strict=True):
            for tool in each.tools:
                name = tool.spec.name
                if allows(entry, name, tool.read_only):
                    offered = copy.copy(tool)
                    wanted = needs_approval(entry, name, tool.read_only, each.approval)
                    offered.needs_approval = wanted or each.insists
                    session.tools[choose_alias(tool.spec, taken)] = offered
        return session

    def _find(self, entry: Json) -> ToolSource | None:
        return next((source for source in self.sources if source.owns(entry)), None)


def choose_alias(spec: ToolSpec, taken: dict[str, int]) -> str:
    """Return the name for the model: the tool's own, unless it is taken or has characters that some servers refuse.

    `taken` counts how often each name was wanted: a server may offer a thousand tools of one name.
    """
    plain = _UNSAFE.sub("_", spec.name)[:MAX_NAME] or "tool"
    labelled = _UNSAFE.sub("_", f"{spec.label}_{spec.name}")[:MAX_NAME]
    alias = plain if plain not in taken else labelled
    while alias in taken:
        taken[labelled] += 1
        number = f"_{taken[labelled]}"
        alias = labelled[: MAX_NAME - len(number)] + number
    taken[alias] = 1
    return alias
