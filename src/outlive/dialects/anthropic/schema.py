"""JSON schemas as Anthropic's structured outputs take them: what they cannot enforce is told to the model in words.

An answer that keeps to the fitted schema keeps to the caller's own as far as objects, types and names go; the limits
that became words are for the model to heed, and for the caller to check.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.events import Json

# Limits that the API refuses to compile.
_WORDS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)  # fmt: skip
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf")


def fit(schema: Any) -> Any:
    """The schema without what the API refuses."""
    if not isinstance(schema, dict):
        return schema
    fitted, told = _split(schema)
    for name in _MAPS:
        if isinstance(fitted.get(name), dict):
            fitted[name] = {key: fit(value) for key, value in fitted[name].items()}
    for name in _LISTS:
        if isinstance(fitted.get(name), list):
            fitted[name] = [fit(value) for value in fitted[name]]
    if "items" in fitted:
        fitted["items"] = fit(fitted["items"])
    if _is_closed(fitted):
        fitted["additionalProperties"] = False
    if told:
        fitted["description"] = " ".join(filter(None, (fitted.get("description"), f"({', '.join(told)})")))
    return fitted


def _split(schema: Json) -> tuple[Json, list[str]]:
    """What can stay, and in words what cannot."""
    fitted: Json = {}
    told: list[str] = []
    for name, value in schema.items():
        refused = (name in _WORDS and not (name == "minItems" and value in (0, 1))) or (
            name == "format" and value not in _FORMATS
        )
        if refused:
            told.append(f"{name}: {msgspec.json.encode(value).decode()}")
        else:
            fitted["anyOf" if name == "oneOf" and "anyOf" not in schema else name] = value
    return fitted, told


def _is_closed(schema: Json) -> bool:
    """Whether it is an object that may be kept to its own properties; one that is only a map of others may not."""
    if "object" not in (schema.get("type"), *_as_list(schema.get("type"))) and "properties" not in schema:
        return False
    return bool(schema.get("properties")) or not schema.get("additionalProperties")


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
