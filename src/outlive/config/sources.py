"""Sources of settings: the TOML file, the environment and the flags, each read into the same shape."""

import difflib
import logging
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from outlive.config.settings import LIMITS, OPTIONS, Given
from outlive.core.errors import SettingsError, require

log = logging.getLogger("outlive")

# Set by a supervisor for its processes: the sockets they inherit.
CHILD_VARIABLE = "_OUTLIVE_CHILD"
# Variables of the command line client, which are no settings of the server.
_CLIENT_VARIABLES = {"OUTLIVE_SERVER", "OUTLIVE_KEY"}


class Sources(NamedTuple):
    """Each setting as the strongest source gives it, and the environment, for secrets written as `env:NAME`."""

    given: dict[str, Given]
    environ: Mapping[str, str]


def gather(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Sources:
    """Read all sources. A flag wins over a variable, and a variable over the TOML file, setting by setting."""
    path = flags.get("config") or environ.get("OUTLIVE_CONFIG")
    given = _read_file(Path(path)) if path else {}
    # None and an empty list count as not given.
    present = {name: value for name, value in flags.items() if value is not None and value != []}
    chosen = {name: Given(value, OPTIONS[name].flag or name, lax=True) for name, value in present.items()}
    return Sources(given | _read_environment(environ) | chosen, environ)


def _read_file(path: Path) -> dict[str, Given]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from error
    limits = table.pop(LIMITS, {})
    require(isinstance(limits, dict), f"{LIMITS} in {path} must be a table: [{LIMITS}].")
    for key in table:
        is_limit = key in OPTIONS and OPTIONS[key].table == LIMITS
        require(not is_limit, f"{key} in {path} belongs in the table [{LIMITS}].")
    return _read_table(table, "", str(path)) | _read_table(limits, LIMITS, f"[{LIMITS}] of {path}")


def _read_table(table: dict[str, Any], name: str, where: str) -> dict[str, Given]:
    known = [option.name for option in OPTIONS.values() if option.table == name]
    for key in table:
        if key not in known:
            raise unknown(f"{key} in {where}", key, known if name else [*known, LIMITS])
    return {key: Given(value, f"{key} in {where}") for key, value in table.items()}


def _read_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    """Read the OUTLIVE_* variables. An empty one counts as not set, because container tools write unset ones so."""
    known = {option.variable: option.name for option in OPTIONS.values() if option.variable}
    given: dict[str, Given] = {}
    for variable, value in environ.items():
        if not variable.startswith("OUTLIVE_") or not value.strip():
            continue
        # Kubernetes sets OUTLIVE_PORT=tcp://... in every pod beside a service that is named "outlive".
        if variable == "OUTLIVE_PORT" and value.startswith("tcp://"):
            continue
        if variable in known:
            given[known[variable]] = Given(value.strip(), variable, lax=True)
        elif variable not in _CLIENT_VARIABLES and _find_close(variable, list(known)):
            raise unknown(variable, variable, list(known))
    return given


def resolve(value: object, where: str, environ: Mapping[str, str]) -> str:
    """Return a secret written as it is, or as the variable that contains it: `env:NAME` or `{env = "NAME"}`.

    No error message repeats the value itself.
    """
    if isinstance(value, dict) and list(value) == ["env"] and isinstance(value["env"], str):
        value = "env:" + value["env"]
    if not isinstance(value, str):
        raise SettingsError(f'{where} must be text, "env:NAME" or {{env = "NAME"}}.')
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        value = environ.get(name, "").strip()
        require(value, f"{where} names the environment variable {name}, which is not set.")
    return _check_sendable(value, where)


def read_key_file(path: str, where: str) -> str:
    """Return the secret in a file, without the newline at its end."""
    return _check_sendable(_read_secret(path, where).strip(), f"The key file {path} ({where})")


def read_key_lines(path: str, where: str) -> list[str]:
    """Return the secrets in a file, one per line."""
    lines = _read_secret(path, where).split()
    require(lines, f"The key file {path} ({where}) is empty.")
    return lines


def warn_if_shared(path: Path, what: str) -> None:
    """Warn if other users of this machine can read or write a file."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("Other users of this machine have access to the %s %s: chmod 600 it.", what, path)


def _read_secret(path: str, where: str) -> str:
    try:
        file = Path(path).expanduser()
        text = file.read_text("utf-8")
        warn_if_shared(file, "key file")
        return text
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its path or its text is malformed"
        raise SettingsError(f"The key file {path} ({where}) cannot be read: {reason}.") from error


def _check_sendable(value: str, where: str) -> str:
    can_be_sent = value and value.isprintable() and value.isascii()
    require(can_be_sent, f"{where} is empty or holds characters that cannot be sent in an HTTP header.")
    return value


def unknown(subject: str, name: str, known: list[str]) -> SettingsError:
    """Return the error for an unknown name, which suggests the most similar setting."""
    if close := _find_close(name, known):
        return SettingsError(f"{subject} is not a setting; did you mean {close[0]}?")
    return SettingsError(f"{subject} is not a setting; there are {', '.join(sorted(known))}.")


def _find_close(name: str, known: list[str]) -> list[str]:
    stems = {other.removeprefix("OUTLIVE_"): other for other in known}
    return [stems[match] for match in difflib.get_close_matches(name.removeprefix("OUTLIVE_"), list(stems), 1, 0.75)]
