"""Settings: one declaration each, from which flags, variables, TOML keys, help texts and error messages are made."""

import math
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta

from outlive.config import database_url
from outlive.core.errors import SettingsError
from outlive.core.events import EventNames
from outlive.core.owners import Oidc, Policy
from outlive.core.requests.checks import Limits
from outlive.core.usage import Price
from outlive.ports.backend import Dialect, Upstream
from outlive.ports.toolbox import McpRequests, ToolServer

NEVER = "never"  # how None is written for a duration: never deleted, never cancelled, no time limit
LIMITS = "limits"  # the TOML table of all settings whose names begin with max_

_SWITCH_WORDS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_WANTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list[str]: 'a list of names such as ["search"]',
}


class Given(NamedTuple):
    """A value as it was written, and the place it was written in, which error messages name."""

    value: object
    where: str
    lax: bool = False  # True: the source has only text (environment, flags), so "5" may be a number


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its names, its type and bounds, its default and its help text."""

    name: str
    type: Any  # without None
    bounds: Meta
    default: object  # UNSET for a list or a table
    help: str
    never: bool  # True: may be written "never", which is None
    flag: str | None
    variable: str | None
    table: str | None  # of the TOML file, "" for its top level
    metavar: str
    wanted: str  # the values it may have, as error messages name them

    @property
    def is_plain(self) -> bool:
        """Return True if `convert` can check it: a scalar or a list of names."""
        return self.type in _WANTED or get_origin(self.type) is Literal


def read_options(struct: type[msgspec.Struct]) -> dict[str, Option]:
    """Make an option of every field, and of every field of an inner struct.

    In a field's Annotated, a Meta is its bounds, a text is its help text, and a dict replaces names: `flag`, `variable`
    and `table`, of which None means that the setting cannot be written there, `metavar` and `wanted`.
    """
    options: dict[str, Option] = {}
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            options |= read_options(field.type)
            continue
        kind, *notes = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
        bounds: Meta = next((note for note in notes if isinstance(note, Meta)), Meta())
        names: dict[str, Any] = next((note for note in notes if isinstance(note, dict)), {})
        optional = NoneType in get_args(kind)
        if optional:
            (kind,) = (arg for arg in get_args(kind) if arg is not NoneType)
        never = optional and kind is float
        defaults = {
            "flag": "--" + field.name.replace("_", "-"),
            "variable": "OUTLIVE_" + field.name.upper(),
            "table": LIMITS if field.name.startswith("max_") else "",
            "metavar": "|".join(get_args(kind)) if get_origin(kind) is Literal else "TEXT" if kind is str else "NUMBER",
            "wanted": _describe(kind, bounds, never),
        }
        options[field.name] = Option(
            name=field.name,
            type=kind,
            bounds=bounds,
            default=UNSET if field.default is msgspec.NODEFAULT else field.default,
            help=next((note for note in notes if isinstance(note, str)), ""),
            never=never,
            **defaults | names,
        )
    return options


def _describe(kind: Any, bounds: Meta, never: bool) -> str:
    """Return the values that a setting may have, as an error message names them."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    wanted = _WANTED.get(kind, "a table")
    if bounds.ge is not None and bounds.le is not None:
        wanted += f" from {bounds.ge:g} to {bounds.le:g}"
    elif bounds.ge is not None:
        wanted += f" of {bounds.ge:g} or more"
    elif bounds.gt is not None:
        wanted += f" above {bounds.gt:g}"
    return wanted + (f', or "{NEVER}"' if never else "")


def convert(option: Option, given: Given) -> Any:
    """Return the value as the setting's type, checked against its bounds. Raise SettingsError."""
    value = given.value
    if option.never and value == NEVER:
        return None
    if given.lax and isinstance(value, str):
        value = _read_text(option, value.strip())
    try:
        value = msgspec.convert(value, Annotated[option.type, option.bounds])
        parts = value if isinstance(value, list) else [value]
        if "" not in parts and not any(isinstance(part, float) and not math.isfinite(part) for part in parts):
            return value
    except msgspec.ValidationError:
        pass  # our sentence names the place, and the values that are possible
    shown = "" if option.type == list[str] else f", not {_show(given.value)}"
    raise SettingsError(f"{given.where} must be {option.wanted}{shown}.")


def _read_text(option: Option, text: str) -> object:
    """Return what a text of a flag or a variable stands for; the text itself if that is not of the option's type."""
    if option.type is bool:
        return _SWITCH_WORDS.get(text.lower(), text)
    if option.type == list[str]:
        return [part.strip() for part in text.split(",")]
    try:
        return option.type(text) if option.type in (int, float) else text
    except ValueError:
        return text


def _show(value: object) -> str:
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return repr(value)


# -- the declarations

Seconds = Annotated[float, Meta(gt=0)]
Period = Annotated[float | None, Meta(gt=0)]  # None: never
Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]

# Names of settings that cannot be written in every source.
_FILE_ONLY = {"flag": None, "variable": None}
_NOT_IN_FILE = {"table": None}


class Shorthands(msgspec.Struct):
    """Settings without a field of their own: `load` makes `upstreams` and `seal_keys` of them."""

    config: Annotated[str | None, "The TOML file with settings.", _NOT_IN_FILE | {"metavar": "FILE"}] = None
    upstream: Annotated[
        str | None, "Base URL of any OpenAI-compatible server, or a preset's name.", _NOT_IN_FILE | {"metavar": "URL"}
    ] = None
    upstream_dialect: Annotated[Dialect | None, "The upstream's API.", _NOT_IN_FILE] = None
    upstream_key: Annotated[str | None, {"flag": None, "table": None}] = None
    upstream_key_file: Annotated[
        str | None, "A file that contains the upstream's key.", _NOT_IN_FILE | {"metavar": "FILE"}
    ] = None
    seal_key: Annotated[str | None, {"flag": None}] = None
    seal_key_file: Annotated[
        str | None, "A file with the keys that seal the secrets of tools.", {"metavar": "FILE"}
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server. `load` makes a checked one."""

    host: Annotated[str, "Address to listen on."] = "127.0.0.1"
    port: Annotated[Port, "Port to listen on; 0 chooses a free one."] = 7878
    root_path: Annotated[
        str,
        Meta(pattern=r"^/$|^(/[A-Za-z0-9_.~-]+)+$"),
        "Path below which a proxy serves Outlive.",
        {"metavar": "PATH", "wanted": "a path such as /outlive, without a slash at its end"},
    ] = "/"
    database: Annotated[str, "sqlite:///FILE or postgresql://USER@HOST/NAME."] = "sqlite:///outlive.db"
    # Empty: the embedded model. The first gets the model names that no other claims.
    upstreams: Annotated[list[Upstream], _FILE_ONLY] = []
    # Owner -> keys. Empty: everything belongs to the owner "local".
    keys: Annotated[
        dict[str, list[str]],
        "An owner and its key; NAME=env:VARIABLE hides the key.",
        {"flag": "--api-key", "variable": "OUTLIVE_API_KEYS", "metavar": "NAME=KEY"},
    ] = {}
    require_keys: Annotated[bool, "Require keys also while there are none: those of `outlive keys new`."] = False
    admin_reads_content: Annotated[bool, "Let admins read the responses and conversations of all owners."] = False
    oidc: Annotated[Oidc | None, _FILE_ONLY] = None
    admins: Annotated[
        list[str],
        "Owner whose keys have the role admin.",
        {"flag": "--admin", "metavar": "NAME", "wanted": 'a list of owners, such as ["ops"]'},
    ] = []
    cors_origins: Annotated[
        list[str],
        "Origin of web pages that may call the server.",
        {"flag": "--cors-origin", "metavar": "ORIGIN", "wanted": 'a list such as ["https://app.example.com"]'},
    ] = []
    trusted_proxies: Annotated[
        list[str],
        "Network of proxies that name the client's address in X-Forwarded-For or Forwarded.",
        {"flag": "--trusted-proxy", "metavar": "CIDR", "wanted": 'a list such as ["10.0.0.0/8"]'},
    ] = msgspec.field(default_factory=lambda: ["127.0.0.0/8", "::1"])
    agents: Annotated[
        list[str],
        "An agent to serve as a model; MODEL=MODULE:NAME sets the model's name.",
        {"flag": "--agent", "metavar": "MODULE:NAME", "wanted": 'a list of agents, such as ["my_module:agent"]'},
    ] = []
    tools: Annotated[
        list[str],
        "A module whose functions the server offers as tools, or MODULE:FUNCTION.",
        {"metavar": "MODULE", "wanted": 'a list of modules, such as ["my_tools"]'},
    ] = []
    # The first seals the secrets of tools, each unseals. Empty: a file next to the database holds the key.
    seal_keys: Annotated[list[str], _FILE_ONLY | _NOT_IN_FILE] = []
    offer_tools: Annotated[bool, "Offer the server's tools to every request, not only to those that ask."] = False
    tool_seconds: Annotated[Seconds, "Time limit of a tool call, in seconds, for tools that set none."] = 60.0
    mcp: Annotated[list[ToolServer], _FILE_ONLY] = []  # MCP servers that requests may name by their labels
    mcp_private: Annotated[bool, "Allow requests to name MCP servers on private addresses."] = False
    mcp_requests: Annotated[McpRequests, "The MCP servers that requests may name by their address."] = "public"
    mcp_hosts: Annotated[
        list[str],
        "A host of MCP servers that requests may name, with --mcp-requests allow-list.",
        {"flag": "--mcp-host", "metavar": "HOST", "wanted": 'a list of hosts, such as ["mcp.example.com"]'},
    ] = []
    mcp_proxy: Annotated[bool, "Send requests to MCP servers through HTTPS_PROXY or HTTP_PROXY too."] = False
    webhook_private: Annotated[bool, "Allow webhook endpoints on private addresses, and without TLS."] = False
    webhook_proxy: Annotated[bool, "Send webhooks through HTTPS_PROXY or HTTP_PROXY too."] = False
    webhook_seconds: Annotated[Seconds, "Time limit of one attempt to send a webhook, in seconds."] = 15.0
    max_mcp_connections: Annotated[PositiveCount, "Connections to MCP servers at once."] = 200
    max_tool_output: Annotated[PositiveCount, "Characters in the output of one tool call."] = 256 * 1024
    max_steps: Annotated[PositiveCount, "Steps of one response that may call the server's tools."] = 100
    processes: Annotated[PositiveCount, "Processes that serve the port together; more than one need Postgres."] = 1
    role: Annotated[Literal["all", "api", "worker"], "The node's role on a shared database."] = "all"
    lease_seconds: Annotated[float, Meta(ge=1), "Seconds without a heartbeat after which a node counts as dead."] = 10.0
    commit_ms: Annotated[float, Meta(ge=0, le=1000), "Longest delay of a group commit, in milliseconds."] = 5.0
    keep_alive_seconds: Annotated[Seconds, "Seconds after which an idle stream gets a keep-alive comment."] = 15.0
    websocket_seconds: Annotated[Seconds, "Longest duration of a WebSocket connection."] = 3600.0
    ticket_seconds: Annotated[Seconds, "Seconds after which a stream ticket expires that names no other time."] = 3600.0
    receive_seconds: Annotated[Seconds, "Seconds for the head of a request; a body gets 1 s per 4 KB besides."] = 30.0
    send_seconds: Annotated[Seconds, "Seconds after which a client that reads nothing is disconnected."] = 120.0
    grace_seconds: Annotated[float, Meta(ge=0), "Seconds that runs may continue after SIGTERM."] = 20.0
    max_running: Annotated[PositiveCount, "Responses running at once."] = 2000
    max_waiting: Annotated[Count, "Responses in the queue."] = 10_000
    max_running_per_owner: Annotated[
        int | None, Meta(ge=0), "Running responses of one owner; 0: no limit. With several owners half of all."
    ] = None
    max_waiting_per_owner: Annotated[
        int | None, Meta(ge=0), "Queued responses of one owner; 0: no limit. With several owners half of all."
    ] = None
    max_connections: Annotated[PositiveCount, "Open connections of clients."] = 10_000
    max_connections_per_address: Annotated[PositiveCount, "Open connections from one address; proxies have none."] = (
        1_000
    )
    max_body_bytes: Annotated[PositiveCount, "Largest request body, in bytes."] = 64 * 1024 * 1024
    limits: Limits = Limits()
    response_days: Annotated[Period, "Days after its last use until a response is deleted, or never."] = 30.0
    conversation_days: Annotated[Period, "Days after its last use until a conversation is deleted, or never."] = None
    pack_after: Annotated[Period, "Seconds after its end until the events of a response are compressed, or never."] = (
        60.0
    )
    abandon_after: Annotated[
        Period, "Seconds after which a foreground run without a reader is cancelled, or never."
    ] = None
    run_seconds: Annotated[Period, "Time limit of one run, in seconds, or never."] = None
    silence_seconds: Annotated[Seconds, "Seconds without a byte after which an upstream request counts as failed."] = (
        1800.0
    )
    owners: Annotated[dict[str, Policy], _FILE_ONLY] = {}  # what each may do, by name
    prices: Annotated[dict[str, Price], _FILE_ONLY] = {}  # by model
    currency: Annotated[str, "The currency of prices and budgets."] = "USD"
    console: Annotated[bool, "Serve the console at /."] = True
    lenient_chat: Annotated[bool, "Ignore state fields on /v1/chat/completions instead of refusing them."] = False
    event_names: Annotated[EventNames, "The event names to use where OpenAI and Open Responses differ."] = "openai"
    sweep_seconds: Annotated[Seconds, "Seconds between two searches for expired data."] = 60.0
    slow_step_ms: Annotated[
        float, Meta(ge=0), "Milliseconds that a step of the event loop may take without a warning; 0: no watchdog."
    ] = 50.0
    metrics_port: Annotated[Port, "Port of a second listener with /metrics only, without a key; 0: none."] = 0
    metrics_owners: Annotated[bool, "Add metrics by owner."] = False
    security_log: Annotated[str, "A file for the security log, in lines of JSON.", {"metavar": "FILE"}] = ""
    log_format: Annotated[Literal["text", "json"], "The format of the log lines."] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], "The least severe level to log."] = "info"

    def __repr__(self) -> str:
        shown = msgspec.structs.asdict(self)
        shown["database"] = database_url.show(self.database)
        shown["keys"] = dict.fromkeys(self.keys, "***")
        shown["seal_keys"] = ["***" for _ in self.seal_keys]
        shown["mcp"] = [_mask(server, "authorization", "headers") for server in self.mcp]
        shown["upstreams"] = [_mask(upstream, "key", "headers", "query", "proxy") for upstream in self.upstreams]
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _mask(struct: msgspec.Struct, *secrets: str) -> msgspec.Struct:
    """Return a copy whose secret fields show only that they are set."""
    hidden = {}
    for name in secrets:
        value = getattr(struct, name)
        hidden[name] = dict.fromkeys(value, "***") if isinstance(value, dict) else value and "***"
    return msgspec.structs.replace(struct, **hidden)


FIELDS = read_options(Settings)
OPTIONS = read_options(Shorthands) | FIELDS
