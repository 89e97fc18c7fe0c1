"""The server's own tools: what a run needs to offer them to its model, and to make the calls that it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls.calls import Outcome, ToolSpec
from outlive.ports.seal import Seal


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a call has come, as far as its tool can tell."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None


class Calling(msgspec.Struct, frozen=True, kw_only=True):
    """One call being made."""

    arguments: Json
    key: str  # response id and item id: the same for the same call, however often it is made
    response_id: str
    owner: str
    repeated: bool  # it was begun before, and nobody knows how far it came
    report: Callable[[Progress], None]  # from the event loop's thread


class ToolServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server: where it is, what it wants to hear, and how its tools may be used."""

    label: str
    url: str
    transport: Literal["auto", "http", "sse"] = "auto"
    headers: dict[str, str] = {}
    authorization: str | None = None  # a bearer token
    allowed: list[str] | None = None  # None: all of its tools
    approval: Literal["always", "never"] = "never"  # where a request does not say
    idempotent: list[str] = []  # tools whose calls may be made again, besides those of which it says so itself
    seconds: float = 60.0


class Tool(Protocol):
    """One tool, ready to be called."""

    spec: ToolSpec
    idempotent: bool  # True: a call that a crash interrupted may simply be made again
    seconds: float  # how long a call may take
    needs_approval: bool  # True: a person is asked before each call

    async def call(self, calling: Calling) -> Outcome:
        """Make the call. Whatever goes wrong with it is an outcome; cancelling stops it as far as it can be stopped."""
        ...


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Whom tools are opened for."""

    response_id: str
    owner: str
    request: CreateResponse
    items: list[Json]  # all that came before, and what the response holds by now, as it is kept
    secrets: dict[str, Json] = {}  # `headers` and `authorization` of the request's tools, by label


class ToolSession(Protocol):
    """The tools of one run, open until it leaves them."""

    tools: dict[str, Tool]  # by the name that the model calls each by
    lists: list[Json]  # `mcp_list_tools` items to show before the first step, each with an id; none twice in a run

    async def close(self) -> None: ...


class Toolbox(Protocol):
    """All the tools that this server can offer."""

    def check(self, request: CreateResponse) -> None:
        """Raise InvalidRequest, naming the parameter, for tools that it has not got."""
        ...

    def serves(self, request: CreateResponse) -> bool:
        """Whether a run of this request has tools of the server's own."""
        ...

    async def open(self, order: Order) -> ToolSession:
        """Raises UpstreamFault when a server of tools cannot be reached."""
        ...


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What runs need to use the server's own tools."""

    toolbox: Toolbox
    ids: IdSource
    seal: Seal | None = None  # of the secrets that tools need
    max_steps: int = 100
    max_output: int = 256 * 1024  # characters of a call's output
