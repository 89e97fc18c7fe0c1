"""Settings: what the server is told, and how defaults, TOML file, environment and flags become one value."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from outlive.config import database_url
from outlive.config.mcp_servers import hide_secrets as hide_server_secrets
from outlive.config.mcp_servers import read_tool_servers
from outlive.config.options import OPTIONS, Given, convert
from outlive.config.sources import Sources, gather, read_key_lines, resolve
from outlive.config.upstreams import hide_secrets, read_upstreams
from outlive.core.errors import SettingsError
from outlive.core.naming import EventNames
from outlive.core.requests.limits import Limits
from outlive.ports.backend import Upstream
from outlive.ports.toolbox import ToolServer

LogLevel = Literal["debug", "info", "warning", "error"]
Role = Literal["all", "api", "worker"]

MIN_SEAL_KEY = 32
_OWNER = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the server is told. `load` makes a checked one from what people wrote."""

    host: str = "127.0.0.1"
    port: int = 7878
    database: str = "sqlite:///outlive.db"
    upstreams: list[Upstream] = []  # empty = the embedded model; the first takes names that no other claims
    keys: dict[str, list[str]] = {}  # owner -> keys; empty = everything belongs to "local"
    cors_origins: list[str] = []
    tools: list[str] = []  # modules, or MODULE:FUNCTION, whose functions are the server's own tools
    agents: list[str] = []  # MODULE:NAME or MODEL=MODULE:NAME of agents that are served as models
    seal_keys: list[str] = []  # the first seals the secrets of tools, each opens; empty = a file beside the database
    offer_tools: bool = False  # to every request, whether it asks for them or not
    tool_seconds: float = 60.0
    mcp: list[ToolServer] = []  # MCP servers that requests may name by their label
    mcp_private: bool = False  # True: requests may name MCP servers on private addresses
    max_tool_output: int = 256 * 1024
    max_steps: int = 100
    role: Role = "all"
    lease_seconds: float = 10.0  # how long a node that is not heard of keeps its responses
    commit_ms: float = 5.0
    keep_alive_seconds: float = 15.0
    websocket_seconds: float = 3600.0
    grace_seconds: float = 20.0
    max_running: int = 2000
    max_waiting: int = 10_000
    max_running_per_owner: int = 0  # 0 = no limit of its own
    max_waiting_per_owner: int = 0
    max_body_bytes: int = 64 * 1024 * 1024
    limits: Limits = Limits()
    response_days: float | None = 30.0  # None = for ever
    conversation_days: float | None = None
    abandon_after: float | None = None  # seconds; None = never
    run_seconds: float | None = None  # wall clock of one run; None = no limit
    silence_seconds: float = 1800.0
    lenient_chat: bool = False
    event_names: EventNames = "openai"
    sweep_seconds: float = 60.0
    log_level: LogLevel = "info"

    @property
    def database_path(self) -> Path:
        """The file behind `sqlite:///FILE`."""
        return database_url.path_of(self.database)

    def __repr__(self) -> str:
        shown = msgspec.structs.asdict(self)
        shown["database"] = database_url.show(self.database)
        shown["keys"] = dict.fromkeys(self.keys, "***")
        shown["seal_keys"] = ["***" for _ in self.seal_keys]
        shown["mcp"] = [hide_server_secrets(server) for server in self.mcp]
        shown["upstreams"] = [hide_secrets(upstream) for upstream in self.upstreams]
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def load(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process: defaults < TOML file < OUTLIVE_* < flags. Raises SettingsError.

    `flags` are named as the settings, besides `config`, `upstream`, `upstream_key_file`, `keys` (a list of NAME=KEY)
    and `cors_origins`; None counts as not given.
    """
    sources = gather(flags or {}, os.environ if environ is None else environ)
    values = {name: convert(OPTIONS[name], given) for name, given in sources.given.items() if name in OPTIONS}
    limits = Limits(**{name: values.pop(name) for name in Limits.__struct_fields__ if name in values})  # type: ignore[arg-type]
    settings = msgspec.structs.replace(
        Settings(limits=limits),
        **values,
        keys=_read_keys(sources),
        cors_origins=_read_origins(sources.given.get("cors_origins")),
        tools=_read_names(sources.given.get("tools"), "modules", "my_tools"),
        agents=_read_names(sources.given.get("agents"), "agents", "my_module:agent"),
        seal_keys=_read_seal_keys(sources),
    )
    database_url.check(settings.database)
    _check_role(settings)
    settings = msgspec.structs.replace(settings, host=settings.host.removeprefix("[").removesuffix("]"))
    _check_exposure(settings)
    return msgspec.structs.replace(
        settings,
        upstreams=read_upstreams(sources, settings.silence_seconds),
        mcp=read_tool_servers(sources, settings.tool_seconds),
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _read_keys(sources: Sources) -> dict[str, list[str]]:
    given = sources.given.get("keys")
    if given is None:
        return {}
    owners: dict[str, list[str]] = {}
    holders: dict[str, str] = {}
    for owner, value in _pairs(given):
        if not _OWNER.match(owner):
            raise SettingsError(f"The owner's name in {given.where} may hold only letters, digits, '_', '.', '@', '-'.")
        key = resolve(value, f"The key of {owner} ({given.where})", sources.environ)
        if " " in key:
            raise SettingsError(f"The key of {owner} ({given.where}) must not hold a space.")
        if holders.setdefault(key, owner) != owner:
            raise SettingsError(f"{holders[key]} and {owner} have the same key; every owner needs a key of his own.")
        if key not in owners.setdefault(owner, []):
            owners[owner].append(key)
    return owners


def _pairs(given: Given) -> list[tuple[str, object]]:
    """Owner and key of every key, however they were written: [keys], NAME=KEY,NAME=KEY or a list of NAME=KEY."""
    if isinstance(given.value, dict):
        return [
            (owner, key) for owner, keys in given.value.items() for key in (keys if isinstance(keys, list) else [keys])
        ]
    if not given.lax:
        raise SettingsError(f'{given.where} must be a table: [keys] with lines such as alice = "env:ALICE_KEY".')
    texts = given.value.split(",") if isinstance(given.value, str) else [str(text) for text in list(given.value)]  # type: ignore[call-overload]
    pairs: list[tuple[str, object]] = []
    for text in texts:
        owner, equals, key = text.strip().partition("=")
        if not equals:
            # What was written may be a bare key, so it is not repeated.
            raise SettingsError(f"{given.where} must be written NAME=KEY, such as alice=env:ALICE_KEY.")
        pairs.append((owner, key))
    return pairs


def _read_origins(given: Given | None) -> list[str]:
    if given is None:
        return []
    value = given.value
    if isinstance(value, str) and given.lax:
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        raise SettingsError(f'{given.where} must be a list such as ["https://app.example.com"].')
    return [_check_origin(origin, given.where) for origin in value]


def _read_names(given: Given | None, what: str, example: str) -> list[str]:
    value = [] if given is None else given.value
    if given is not None and isinstance(value, str) and given.lax:
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        where = what if given is None else given.where
        raise SettingsError(f'{where} must be a list of {what}, such as ["{example}"].')
    return value


def _read_seal_keys(sources: Sources) -> list[str]:
    """The key itself, or the lines of a file: the first seals, the others only open what they sealed before."""
    key, file = sources.given.get("seal_key"), sources.given.get("seal_key_file")
    if file is not None and (key is None or file.where.startswith("--")):
        lines = read_key_lines(str(file.value), file.where)
    elif key is not None:
        lines = [resolve(key.value, key.where, sources.environ)]
    else:
        return []
    if any(len(line) < MIN_SEAL_KEY for line in lines):
        raise SettingsError(f"A seal key must have {MIN_SEAL_KEY} characters at least; draw it at random.")
    return lines


def _check_origin(origin: object, where: str) -> str:
    if origin == "*":
        return "*"
    if isinstance(origin, str):
        origin = origin.rstrip("/")
        parts = urlsplit(origin)
        if parts.scheme and parts.hostname and origin == f"{parts.scheme}://{parts.netloc}" and "@" not in origin:
            return origin.lower()
    raise SettingsError(f"{where} must be an origin such as https://app.example.com, or *; not {origin!r}.")


def _check_role(settings: Settings) -> None:
    if settings.role != "all" and not database_url.is_shared(settings.database):
        raise SettingsError(
            f"The role {settings.role} needs a database that nodes can share; give --database postgresql://USER@HOST/NAME."
        )


def _check_exposure(settings: Settings) -> None:
    """Without keys nobody but this machine, and no web page, may drive the server."""
    if settings.keys or settings.role == "worker":  # a worker answers health checks, and nothing else
        return
    if not is_loopback(settings.host):
        raise SettingsError(
            f"Without keys the server listens on this machine only, not on {settings.host}; "
            "give --api-key NAME=KEY to let others in."
        )
    if "*" in settings.cors_origins:
        raise SettingsError(
            "Without keys the CORS origin * would let any web page drive the server; "
            "name the origins, or give --api-key NAME=KEY."
        )
