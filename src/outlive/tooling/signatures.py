"""Reads a tool's arguments, their JSON schema and the descriptions from a function's signature and docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from outlive.core.errors import SettingsError
from outlive.core.events import Json

_ARGUMENT = re.compile(r"^\s*(?::param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Params|Returns?|Raises|Yields|Examples?|Notes?)\s*:\s*$")
_ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})


class Signature(msgspec.Struct, frozen=True):
    """A function's parameters as the arguments of a tool."""

    arguments: type[msgspec.Struct]
    context: str | None  # the parameter that takes the context
    schema: Json
    about: str  # the description of the tool


def read_signature(function: Callable[..., Any], context_type: type) -> Signature:
    """Read a function. Raises SettingsError, with one sentence, for one that cannot be a tool."""
    name = f"{function.__module__}.{function.__qualname__}"
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError) as error:
        raise SettingsError(f"The types of the tool {name} cannot be read: {error}.") from error
    fields: list[Any] = []
    context: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SettingsError(f"The tool {name} can have only parameters with names and types, not {parameter}.")
        if parameter.name not in hints:
            raise SettingsError(f"The parameter {parameter.name} of the tool {name} has no type.")
        if hints[parameter.name] is context_type:
            context = parameter.name
            continue
        field = (parameter.name, _describe(hints[parameter.name]))
        fields.append(field if parameter.default is parameter.empty else (*field, _default(parameter.default)))
    about, described = read_docstring(function)
    try:
        arguments = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        return Signature(arguments, context, _make_schema(arguments, described), about)
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"The parameters of the tool {name} have a type without a JSON schema: {reason}."
        ) from error


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the tool's description, and those of its parameters: the `Args:` section, or `:param name:` lines."""
    about: list[str] = []
    described: dict[str, str] = {}
    section = ""
    for line in (inspect.getdoc(function) or "").splitlines():
        if (found := _SECTION.match(line)) is not None:
            section = found[1]
        elif section in _ARGUMENT_SECTIONS or line.lstrip().startswith(":param"):
            if (found := _ARGUMENT.match(line)) is not None:
                described[found[1]] = found[2].strip()
        elif not section and not line.lstrip().startswith(":"):
            about.append(line)
    return "\n".join(about).strip(), described


def _describe(hint: Any) -> Any:
    """Turn `Annotated[str, "a description"]` into a type whose schema has the description."""
    if get_origin(hint) is not Annotated:
        return hint
    inner, *notes = get_args(hint)
    described = [msgspec.Meta(description=note) for note in notes if isinstance(note, str)]
    for note in [note for note in notes if isinstance(note, msgspec.Meta)] + described[:1]:
        inner = Annotated[inner, note]
    return inner


def _default(value: Any) -> Any:
    plain = value is None or isinstance(value, str | int | float | bool)
    return value if plain else msgspec.field(default_factory=lambda: value)


def _make_schema(arguments: type[msgspec.Struct], described: dict[str, str]) -> Json:
    _, components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: Json = components.pop("Arguments")
    schema.pop("title", None)
    for name, field in schema.get("properties", {}).items():
        if name in described and "description" not in field:
            field["description"] = described[name]
    return schema | ({"$defs": components} if components else {})
