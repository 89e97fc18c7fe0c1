"""The rack: every source of tools that this server has, as the one toolbox that runs know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from outlive.core.events import Json
from outlive.core.requests.checks import refuse
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.mcp_servers import allows, needs_approval
from outlive.core.toolcalls.calls import ToolOutcome, ToolSpec
from outlive.core.toolcalls.offer import SERVER_TOOL_TYPE
from outlive.ports.toolbox import Invocation, SessionRequest, Tool, ToolSession

MAX_NAME = 64  # what every model's server takes as the name of a function

_ODD = re.compile(r"[^A-Za-z0-9_-]")


class Raw(Protocol):
    """A tool as its source has it, before a request says how it may be used."""

    spec: ToolSpec
    idempotent: bool
    seconds: float
    read_only: bool

    async def call(self, invocation: Invocation) -> ToolOutcome: ...


class Opened(msgspec.Struct, frozen=True):
    """What a source has for one entry of a request's tools."""

    tools: Sequence[Raw]
    listed: Json | None = None  # the `mcp_list_tools` item to show for it, with an id
    close: Callable[[], Awaitable[None]] | None = None


class Source(Protocol):
    """Where tools come from: functions of this server's own, or MCP servers."""

    def owns(self, entry: Json) -> bool:
        """Whether an entry of a request's tools is for this source. The first source that says so has it."""
        ...

    def check(self, entry: Json, param: str) -> None:
        """Raise InvalidRequest for an entry that is for this source, but cannot be served."""
        ...

    def default_approval(self, entry: Json) -> str:
        """`always` or `never`: whether a person is asked where the entry does not say."""
        ...

    async def open(self, entry: Json, session_request: SessionRequest) -> Opened:
        """Raises UpstreamFault when it cannot be reached."""
        ...


class Offered:
    """A tool as one request may use it."""

    def __init__(self, raw: Raw, needs_approval: bool) -> None:
        self.spec = raw.spec
        self.idempotent = raw.idempotent
        self.seconds = raw.seconds
        self.needs_approval = needs_approval
        self.call = raw.call


class OpenToolSession:
    """The tools of one run."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.lists: list[Json] = []
        self._closing: list[Callable[[], Awaitable[None]]] = []

    def add(self, opened: Opened, entry: Json, default_approval: str, taken: set[str]) -> None:
        if opened.listed is not None:
            self.lists.append(opened.listed)
        if opened.close is not None:
            self._closing.append(opened.close)
        for raw in opened.tools:
            name = raw.spec.name
            if allows(entry, name, raw.read_only):
                asks = needs_approval(entry, name, raw.read_only, default_approval)
                alias = choose_alias(raw.spec, taken)
                taken.add(alias)
                self.tools[alias] = Offered(raw, asks)

    async def close(self) -> None:
        await asyncio.gather(*(close() for close in self._closing), return_exceptions=True)


class ToolRegistry:
    """Hands each entry of a request's tools to the source that it is for."""

    def __init__(self, sources: Sequence[Source], always: Sequence[Json] = ()) -> None:
        self._sources = sources
        self._always = list(always)  # entries that every request has, unless it has one of that label

    def check(self, request: CreateResponse) -> None:
        labels: set[str] = set()
        for n, entry in enumerate(request.tools):
            if entry["type"] != SERVER_TOOL_TYPE:
                continue
            label = entry["server_label"]
            if label in labels:
                refuse(f"Two entries of 'tools' have the label '{label}'.", f"tools[{n}].server_label")
            labels.add(label)
            source = self._find(entry)
            if source is None:
                refuse(f"This server has no tools with the label '{label}'.", f"tools[{n}].server_label")
            source.check(entry, f"tools[{n}]")

    def serves(self, request: CreateResponse) -> bool:
        if self._always or any(tool["type"] == SERVER_TOOL_TYPE for tool in request.tools):
            return True
        # The answer to a question of ours, though without the tools that it was about: then the call fails, visibly.
        return any(item["type"] == "mcp_approval_response" for item in request.input)

    async def open(self, session_request: SessionRequest) -> ToolSession:
        bench = OpenToolSession()
        taken = {str(tool.get("name")) for tool in session_request.request.tools if tool["type"] != SERVER_TOOL_TYPE}
        found = [(entry, self._find(entry)) for entry in self._entries(session_request.request)]
        known = [(entry, source) for entry, source in found if source is not None]
        # All at once: a server that does not answer must not add its time to that of the next.
        opening = [asyncio.ensure_future(source.open(entry, session_request)) for entry, source in known]
        try:
            await asyncio.gather(*opening)
        finally:
            failed = await _stop(opening)
            for (entry, source), task in zip(known, opening, strict=True):
                if not task.cancelled() and task.exception() is None:
                    bench.add(task.result(), entry, source.default_approval(entry), taken)
            if failed:
                await bench.close()
        return bench

    def _entries(self, request: CreateResponse) -> list[Json]:
        own = [tool for tool in request.tools if tool["type"] == SERVER_TOOL_TYPE]
        labels = {entry["server_label"] for entry in own}
        return own + [entry for entry in self._always if entry["server_label"] not in labels]

    def _find(self, entry: Mapping[str, object]) -> Source | None:
        return next((source for source in self._sources if source.owns(dict(entry))), None)


async def _stop(opening: Sequence[asyncio.Future[Opened]]) -> bool:
    """End what is not open yet; whether there is any that is not."""
    for task in opening:
        task.cancel()
    await asyncio.gather(*opening, return_exceptions=True)
    return any(task.cancelled() or task.exception() is not None for task in opening)


def choose_alias(spec: ToolSpec, taken: set[str]) -> str:
    """What the model calls a tool: its name, unless that is taken or is none that models' servers know."""
    plain = _ODD.sub("_", spec.name)[:MAX_NAME] or "tool"
    if plain not in taken:
        return plain
    labelled = _ODD.sub("_", f"{spec.label}_{spec.name}")[:MAX_NAME]
    number = 2
    alias = labelled
    while alias in taken:
        alias = f"{labelled[: MAX_NAME - 4]}_{number}"
        number += 1
    return alias
