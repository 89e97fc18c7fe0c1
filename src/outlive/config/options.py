"""Options: settings read from the fields of a struct, their names in every source, and the check of their values."""

import math
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta

from outlive.core.errors import SettingsError

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
