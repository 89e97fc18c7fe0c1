"""The scalar settings as one table, from which flags, environment variables and TOML keys are all read."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from outlive.core.errors import SettingsError

Kind = Literal["text", "whole", "number", "switch"]

# How a person writes None: "never deleted", "never abandoned", "never ended".
NEVER = "never"

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Given(NamedTuple):
    """A value as somebody wrote it, and where, so that a complaint can name the place."""

    value: object
    where: str
    lax: bool = False  # True: the source knows only text (environment, flags), so "5" may be a number


class Option(NamedTuple):
    """What one setting may be."""

    kind: Kind
    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None  # like `least`, but the bound itself is too little
    never: bool = False  # True: may be "never", which is None
    choices: tuple[str, ...] = ()
    limit: bool = False  # True: stands in [limits] in the TOML file


OPTIONS: dict[str, Option] = {
    "host": Option("text", "Address to listen on."),
    "port": Option("whole", "Port to listen on; 0 takes a free one.", least=0, most=65535),
    "database": Option("text", "Where everything is stored: sqlite:///FILE or postgresql://USER@HOST/NAME."),
    "role": Option(
        "text", "What a node on a shared database does: all, api or worker.", choices=("all", "api", "worker")
    ),
    "lease_seconds": Option("number", "Seconds after which a node that is not heard of is taken for dead.", least=1),
    "commit_ms": Option("number", "Longest wait for a group commit, in milliseconds.", least=0, most=1000),
    "keep_alive_seconds": Option("number", "Pause after which an idle stream gets a keep-alive comment.", above=0),
    "websocket_seconds": Option("number", "Longest life of a WebSocket connection.", above=0),
    "grace_seconds": Option("number", "How long runs may go on after SIGTERM.", least=0),
    "offer_tools": Option("switch", "Offer the server's own tools to every request, not only to those that ask."),
    "tool_seconds": Option("number", "How long a call of a tool may take, where the tool does not say.", above=0),
    "mcp_private": Option("switch", "Let requests name MCP servers on private addresses."),
    "max_tool_output": Option("whole", "Characters in the output of one call of a tool.", least=1, limit=True),
    "max_steps": Option("whole", "Steps of one response that may call tools.", least=1, limit=True),
    "max_running": Option("whole", "Responses running at once.", least=1, limit=True),
    "max_waiting": Option("whole", "Responses waiting for a place.", least=0, limit=True),
    "max_running_per_owner": Option("whole", "Running responses of one owner; 0 = no own limit.", least=0, limit=True),
    "max_waiting_per_owner": Option("whole", "Waiting responses of one owner; 0 = no own limit.", least=0, limit=True),
    "max_body_bytes": Option("whole", "Largest request body, in bytes.", least=1, limit=True),
    "max_items": Option("whole", "Items in one request.", least=1, limit=True),
    "max_depth": Option("whole", "Nesting of a request's JSON.", least=1, limit=True),
    "max_text": Option("whole", "Characters in one string.", least=1, limit=True),
    "max_tools": Option("whole", "Tools in one request.", least=0, limit=True),
    "response_days": Option(
        "number", "Days a response is kept after its last use, or never (deleted).", above=0, never=True
    ),
    "conversation_days": Option(
        "number", "Days a conversation is kept after its last use, or never (deleted).", above=0, never=True
    ),
    "abandon_after": Option(
        "number", "Seconds after which a foreground run that nobody reads is cancelled, or never.", above=0, never=True
    ),
    "run_seconds": Option(
        "number", "Longest time one run may take, in seconds, or never (ended).", above=0, never=True
    ),
    "silence_seconds": Option("number", "Seconds without a byte after which an upstream counts as broken.", above=0),
    "lenient_chat": Option("switch", "Ignore state fields on /v1/chat/completions instead of refusing them."),
    "event_names": Option(
        "text", "Whose names events have where the two differ.", choices=("openai", "open-responses")
    ),
    "sweep_seconds": Option("number", "Pause between two searches for what has expired.", above=0),
    "log_level": Option("text", "How much is logged.", choices=("debug", "info", "warning", "error")),
}


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return "OUTLIVE_" + name.upper()


def convert(option: Option, given: Given) -> object:
    """The value as the setting's type, checked against its range. Raises SettingsError."""
    if option.never and given.value == NEVER:
        return None
    value = _read(option.kind, given)
    if value is None or not _allowed(option, value):
        raise SettingsError(f"{given.where} must be {_wanted(option)}, not {_shown(given.value)}.")
    return value


def _read(kind: Kind, given: Given) -> str | int | float | bool | None:
    value = given.value
    if given.lax and isinstance(value, str):
        return _read_text(kind, value.strip())
    if kind == "text":
        return value if isinstance(value, str) else None
    if kind == "switch":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if kind == "whole":
        return value if isinstance(value, int) else None
    return float(value) if isinstance(value, int | float) else None


def _read_text(kind: Kind, text: str) -> str | int | float | bool | None:
    if kind == "text":
        return text
    if kind == "switch":
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else None
    try:
        return int(text) if kind == "whole" else float(text)
    except ValueError:
        return None


def _allowed(option: Option, value: str | int | float | bool) -> bool:
    if isinstance(value, str):
        return value in option.choices if option.choices else bool(value)
    if not math.isfinite(value):
        return False
    return (
        (option.least is None or value >= option.least)
        and (option.most is None or value <= option.most)
        and (option.above is None or value > option.above)
    )


def _wanted(option: Option) -> str:
    if option.choices:
        return "one of " + ", ".join(option.choices)
    wanted = {"text": "text", "whole": "a whole number", "number": "a number", "switch": "true or false"}[option.kind]
    if option.least is not None and option.most is not None:
        wanted += f" from {option.least:g} to {option.most:g}"
    elif option.least is not None:
        wanted += f" of {option.least:g} or more"
    elif option.above is not None:
        wanted += f" above {option.above:g}"
    return wanted + (f', or "{NEVER}"' if option.never else "")


def _shown(value: object) -> str:
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return repr(value)
