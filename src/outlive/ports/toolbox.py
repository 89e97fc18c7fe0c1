"""The port of the server's own tools: opening them for one run, and calling them."""

from collections.abc import Callable
from typing import Annotated, Literal, Protocol

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import ToolOutcome, ToolSpec
from outlive.ports.seal import Seal

# The MCP servers that requests may name by their address.
McpRequests = Literal["off", "allow-list", "public"]


class ToolProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool's report on how far its call has come."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool, as the tool receives it."""

    arguments: Json
    key: str  # response id and item id: the same for the same call, however often it is made
    response_id: str
    owner: str
    repeated: bool  # it was begun before, and how far it came is unknown
    report: Callable[[ToolProgress], None]  # to be called from the event loop's thread
    headers: dict[str, str] = {}  # that continue its trace, for a tool on another server


class ToolServer(msgspec.Struct, frozen=True, kw_only=True):
    """The address, credentials and limits of an MCP server."""

    label: str
    url: str
    transport: Literal["auto", "http", "sse"] = "auto"
    headers: dict[str, str] = {}
    authorization: str | None = None  # a bearer token
    allowed_tools: list[str] | None = None  # None: all of its tools
    require_approval: Literal["always", "never"] = "never"  # a request may raise it, but not lower it
    idempotent_tools: list[str] = []  # may be called again after a crash, besides those that the server marks so
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class Tool(Protocol):
    """A tool that is ready to be called."""

    spec: ToolSpec
    idempotent: bool  # True: a call that a crash interrupted may simply be made again
    read_only: bool
    seconds: float  # the limit of a call's duration
    needs_approval: bool  # True: a person is asked before each call

    async def call(self, invocation: Invocation) -> ToolOutcome:
        """Make the call. A failure is an outcome too; cancelling stops the call as far as it can be stopped."""


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The run that tools are opened for."""

    response_id: str
    owner: str
    request: CreateResponse
    lists: list[Json] = []  # `mcp_list_tools` items of this context that this server made itself, oldest first
    secrets: dict[str, Json] = {}  # `headers` and `authorization` of the request's tools, by label


class ToolSession(Protocol):
    """The tools of one run, open until the run closes them."""

    tools: dict[str, Tool]  # by the name under which the model calls each
    lists: list[Json]  # `mcp_list_tools` items to show before the first step, each with an id; none twice in a run

    async def close(self) -> None: ...


class Toolbox(Protocol):
    """All tools that this server can offer."""

    def check(self, request: CreateResponse) -> None:
        """Raise InvalidRequest, naming the parameter, for tools that this server does not have."""

    def serves(self, request: CreateResponse) -> bool:
        """Return True if a run of this request uses tools of the server's own."""

    async def open(self, session_request: SessionRequest) -> ToolSession:
        """Open the tools of one run. Raises UpstreamFault when a server of tools cannot be reached."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """The toolbox and the limits of its use, as runs need them."""

    toolbox: Toolbox
    ids: IdSource
    seal: Seal | None = None  # of the secrets that tools need
    max_steps: int = 100
    max_output: int = 256 * 1024  # characters of a call's output
