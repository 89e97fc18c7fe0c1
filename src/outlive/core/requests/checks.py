"""Checks of single values: each returns the value it was given, or refuses it by the path of its field."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NoReturn, cast

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.ids import is_well_formed

# Beyond this, languages whose only number is the double can no longer tell integers apart.
MAX_INTEGER = 2**53

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 60  # characters of a refused value that its message repeats


def refuse(message: str, param: str | None, code: str = "invalid_value") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)


def refuse_type(value: object, param: str, expected: str) -> NoReturn:
    found = _KINDS.get(type(value), type(value).__name__)
    refuse(f"'{param}' must be {expected}, not {found}.", param, "invalid_type")


def refuse_missing(param: str, hint: str = "") -> NoReturn:
    refuse(f"'{param}' is required.{hint}", param, "missing_required_parameter")


def refuse_unsupported(param: str, why: str) -> NoReturn:
    refuse(f"'{param}' is not supported by this server: {why}", param, "unsupported_parameter")


def check_bool(value: object, param: str) -> bool:
    if value is True or value is False:
        return value
    refuse_type(value, param, "a boolean")


def check_str(value: object, param: str, least: int = 0, most: int | None = None) -> str:
    if type(value) is not str:
        refuse_type(value, param, "a string")
    if least and len(value) < least:
        refuse(f"'{param}' must not be empty.", param, "string_below_min_length")
    if most is not None and len(value) > most:
        refuse_length(len(value), param, most)
    return value


def refuse_length(length: int, param: str, most: int) -> NoReturn:
    refuse(f"'{param}' has {length} characters; at most {most} are allowed.", param, "string_above_max_length")


def check_int(value: object, param: str, least: int, most: int = MAX_INTEGER) -> int:
    if type(value) is not int:  # a boolean is no integer on the wire, though Python thinks so
        refuse_type(value, param, "an integer")
    if value < least:
        refuse(f"'{param}' must be at least {least}.", param, "integer_below_min_value")
    if value > most:
        refuse(f"'{param}' must be at most {most}.", param, "integer_above_max_value")
    return value


def check_number(value: object, param: str, least: float, most: float) -> float:
    if type(value) is not float and type(value) is not int:
        refuse_type(value, param, "a number")
    if value < least:
        refuse(f"'{param}' must be at least {least:g}.", param, "decimal_below_min_value")
    if value > most:
        refuse(f"'{param}' must be at most {most:g}.", param, "decimal_above_max_value")
    return float(value)


def check_enum(value: object, param: str, values: Collection[str]) -> str:
    if type(value) is not str:
        refuse_type(value, param, "a string")
    if value not in values:
        refuse(f"'{param}' cannot be '{shorten(value)}'; it can be {listing(values)}.", param)
    return value


def check_object(value: object, param: str) -> Json:
    if type(value) is not dict:
        refuse_type(value, param, "an object")
    return value


def check_list(value: object, param: str, most: int | None = None, things: str = "elements") -> list[Any]:
    if type(value) is not list:
        refuse_type(value, param, "an array")
    if most is not None and len(value) > most:
        refuse(f"'{param}' has {len(value)} {things}; at most {most} are allowed.", param, "array_above_max_length")
    return value


def check_id(value: object, param: str) -> str:
    if type(value) is not str:
        refuse_type(value, param, "a string")
    if not is_well_formed(value):
        refuse(f"'{param}' is not an id: 1 to 128 letters, digits, '_' or '-' make one.", param)
    return value


def check_name(value: object, param: str, most: int) -> str:
    name = check_str(value, param, least=1, most=most)
    if _NAME.fullmatch(name) is None:
        refuse(f"'{param}' may hold letters, digits, '_' and '-' only.", param)
    return name


def check_depth(value: object, param: str, most: int) -> None:
    """Level by level instead of by recursion, so that no depth can exhaust the stack."""
    level = [cast(Any, value)]
    for _ in range(most):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    refuse(f"'{param}' is nested more than {most} levels deep.", param)


def shorten(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "..."


def listing(values: Collection[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)
