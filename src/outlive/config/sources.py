"""Where settings are written: the TOML file, the environment and the flags, read into one shape, the stronger last."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from outlive.config.options import OPTIONS, Given, flag_name, variable_name
from outlive.core.errors import SettingsError

# Settings that are not one scalar, and the names they go by: flag, variable, TOML key.
OTHERS = {
    "upstream": ("--upstream", "OUTLIVE_UPSTREAM", None),
    "upstream_dialect": ("--upstream-dialect", "OUTLIVE_UPSTREAM_DIALECT", None),
    "upstream_key": (None, "OUTLIVE_UPSTREAM_KEY", None),
    "upstream_key_file": ("--upstream-key-file", "OUTLIVE_UPSTREAM_KEY_FILE", None),
    "keys": ("--api-key", "OUTLIVE_API_KEYS", "keys"),
    "cors_origins": ("--cors-origin", "OUTLIVE_CORS_ORIGINS", "cors_origins"),
    "tools": ("--tools", "OUTLIVE_TOOLS", "tools"),
    "agents": ("--agent", "OUTLIVE_AGENTS", "agents"),
    "seal_key": (None, "OUTLIVE_SEAL_KEY", "seal_key"),
    "seal_key_file": ("--seal-key-file", "OUTLIVE_SEAL_KEY_FILE", "seal_key_file"),
    "upstreams": (None, None, "upstreams"),
    "mcp": (None, None, "mcp"),
}
TABLES = [key for _flag, _variable, key in OTHERS.values() if key]
# Variables that are no settings of the server: what the command line client reads.
_CLIENT_VARIABLES = {"OUTLIVE_CONFIG", "OUTLIVE_SERVER", "OUTLIVE_KEY"}

Layer = dict[str, Given]


class Sources(NamedTuple):
    """Everything that was written, the strongest word for each setting; and the environment, for `env:NAME`."""

    given: Layer
    environ: Mapping[str, str]


def gather(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Sources:
    """Defaults < TOML file < environment < flags, setting by setting."""
    layer: Layer = {}
    path = flags.get("config") or environ.get("OUTLIVE_CONFIG")
    if path:
        layer |= read_file(Path(path))
    return Sources(layer | read_environment(environ) | read_flags(flags), environ)


def read_file(path: Path) -> Layer:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from error
    layer: Layer = {}
    for key, value in table.items():
        if key == "limits":
            layer |= _read_limits(value, path)
            continue
        known = [name for name, option in OPTIONS.items() if not option.limit] + TABLES
        if key in OPTIONS and OPTIONS[key].limit:
            raise SettingsError(f"{key} in {path} belongs in the table [limits].")
        if key not in known:
            raise unknown(f"{key} in {path}", key, [*known, "limits"])
        layer[key] = Given(value, f"{key} in {path}")
    return layer


def _read_limits(table: object, path: Path) -> Layer:
    if not isinstance(table, dict):
        raise SettingsError(f"limits in {path} must be a table: [limits].")
    known = [name for name, option in OPTIONS.items() if option.limit]
    for key in table:
        if key not in known:
            raise unknown(f"{key} in [limits] of {path}", key, known)
    return {key: Given(value, f"{key} in [limits] of {path}") for key, value in table.items()}


def read_environment(environ: Mapping[str, str]) -> Layer:
    """The OUTLIVE_* variables. An empty one counts as not set, as container tools write them so."""
    known = {variable_name(name): name for name in OPTIONS}
    known |= {variable: name for name, (_, variable, _key) in OTHERS.items() if variable}
    layer: Layer = {}
    for variable, value in environ.items():
        if not variable.startswith("OUTLIVE_") or not value.strip():
            continue
        # Kubernetes sets OUTLIVE_PORT=tcp://... in every pod beside a service that is named "outlive".
        if variable == "OUTLIVE_PORT" and value.startswith("tcp://"):
            continue
        if variable in known:
            layer[known[variable]] = Given(value.strip(), variable, lax=True)
        elif variable not in _CLIENT_VARIABLES and _close(variable, list(known)):
            raise unknown(variable, variable, list(known))
    return layer


def read_flags(flags: Mapping[str, Any]) -> Layer:
    """What the command line gave; None and empty lists were not given."""
    layer: Layer = {}
    for name, value in flags.items():
        if name == "config" or value is None or value == []:
            continue
        flag = flag_name(name) if name in OPTIONS else OTHERS[name][0] or name
        layer[name] = Given(value, flag, lax=True)
    return layer


def resolve(value: object, where: str, environ: Mapping[str, str]) -> str:
    """A value that may be secret: as it is, or the name of the variable that holds it (`env:NAME`, `{env = "NAME"}`).

    No message repeats the value itself.
    """
    if isinstance(value, dict) and list(value) == ["env"] and isinstance(value["env"], str):
        value = "env:" + value["env"]
    if not isinstance(value, str):
        raise SettingsError(f'{where} must be text, "env:NAME" or {{env = "NAME"}}.')
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        value = environ.get(name, "").strip()
        if not value:
            raise SettingsError(f"{where} names the environment variable {name}, which is not set.")
    return _sendable(value, where)


def read_key_file(path: str, where: str) -> str:
    """The secret in a file, without the newline at its end."""
    try:
        text = Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its path or its text is malformed"
        raise SettingsError(f"The key file {path} ({where}) cannot be read: {reason}.") from error
    return _sendable(text, f"The key file {path} ({where})")


def read_key_lines(path: str, where: str) -> list[str]:
    """The secrets in a file, one per line."""
    try:
        lines = Path(path).expanduser().read_text("utf-8").split()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its path or its text is malformed"
        raise SettingsError(f"The key file {path} ({where}) cannot be read: {reason}.") from error
    if not lines:
        raise SettingsError(f"The key file {path} ({where}) is empty.")
    return lines


def _sendable(value: str, where: str) -> str:
    if not value or not value.isprintable() or not value.isascii():
        raise SettingsError(f"{where} is empty or holds characters that cannot be sent in an HTTP header.")
    return value


def unknown(subject: str, name: str, known: list[str]) -> SettingsError:
    """The complaint about a name that is no setting, with the one that was probably meant."""
    close = _close(name, known)
    if close:
        return SettingsError(f"{subject} is not a setting; did you mean {close[0]}?")
    return SettingsError(f"{subject} is not a setting; there are {', '.join(sorted(known))}.")


def _close(name: str, known: list[str]) -> list[str]:
    stem = {other.removeprefix("OUTLIVE_"): other for other in known}
    return [stem[match] for match in difflib.get_close_matches(name.removeprefix("OUTLIVE_"), list(stem), 1, 0.75)]
