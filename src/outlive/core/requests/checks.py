"""Checks of JSON values, made from the types that describe them.

A field is declared once, as a msgspec type with its constraints: its check is made from that type, and so is its schema
in /openapi.json. A field with a default may be null, which is as if it were left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sized
from functools import partial
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType, defstruct, inspect

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.ids import ID_PATTERN


class Limits(msgspec.Struct, frozen=True):
    """The most that one request may hold; a request above any of them is refused before anything is stored."""

    max_items: Annotated[int, Meta(ge=1), "Items in one request."] = 10_000
    max_depth: Annotated[int, Meta(ge=1), "Nesting of a request's JSON."] = 100
    max_text: Annotated[int, Meta(ge=1), "Characters in one string."] = 10_485_760
    max_tools: Annotated[int, Meta(ge=0), "Tools in one request."] = 512


T = TypeVar("T")
# A field that stays out of the object where it is left out; other defaults are filled in.
Given: TypeAlias = T | UnsetType
# Returns the value to keep, which may be a completed copy, or raises WrongField.
Check: TypeAlias = Callable[[Any, Limits], Any]

# Beyond this, languages whose only number is the double can no longer tell integers apart.
MAX_INTEGER = 2**53
# The address of a shape in the OpenAPI document.
REF = "#/components/schemas/{name}"
# Shapes that one_of and shaped refer to: msgspec does not find them by itself when it describes a type.
REFERRED: list[type[Struct]] = []

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
# A boolean is no number on the wire, though Python thinks so.
_INTEGER = ((int,), "an integer", "integer_below_min_value", "integer_above_max_value")
_NUMBER = ((int, float), "a number", "decimal_below_min_value", "decimal_above_max_value")
_SHOWN = 60  # characters of a refused value that its message repeats


class WrongField(InvalidRequest):
    """A field that is refused. Its path grows from the inside out, so that none is written for a good field."""

    def __init__(self, problem: str, path: str = "", code: str | None = None, sentence: str = "'{}' {}") -> None:
        super().__init__(sentence.format(path, problem), param=path, code=code)
        self.problem = problem
        self.sentence = sentence

    def under(self, name: str) -> WrongField:
        """Return the same refusal, as the object or array called `name` sees it."""
        return WrongField(self.problem, f"{name}{self.param}", self.code, self.sentence)


def refuse(message: str, param: str | None, code: str = "invalid_value") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)


def refuse_type(value: object, path: str, expected: str) -> NoReturn:
    found = _KINDS.get(type(value), type(value).__name__)
    raise WrongField(f"must be {expected}, not {found}.", path, "invalid_type")


def refuse_missing(path: str, hint: str = "") -> NoReturn:
    raise WrongField(f"is required.{hint}", path, "missing_required_parameter")


def refuse_unsupported(path: str, why: str) -> NoReturn:
    raise WrongField(f"is not supported by this server: {why}", path, "unsupported_parameter")


def refuse_length(value: Sized, most: int, things: str, code: str) -> NoReturn:
    raise WrongField(f"has {len(value)} {things}; at most {most} are allowed.", code=code)


def check_value(check: Check, value: object, param: str, limits: Limits | None = None) -> Any:
    """Check a value that stands alone."""
    try:
        return check(value, limits or Limits())
    except WrongField as wrong:
        raise wrong.under(param) from None


def check_enum(value: object, path: str, values: Collection[str]) -> str:
    if type(value) is not str:
        refuse_type(value, path, "a string")
    if value not in values:
        choices = ", ".join(f"'{each}'" for each in values)
        raise WrongField(f"cannot be '{shorten(value)}'; it can be {choices}.", path)
    return value


def check_object(value: object, limits: Limits) -> Json:
    if type(value) is not dict:
        refuse_type(value, "", "an object")
    return value


def check_depth(value: object, most: int) -> None:
    """Go level by level instead of by recursion, so that no depth can exhaust the stack."""
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
    raise WrongField(f"is nested more than {most} levels deep.")


def shorten(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "..."


# -- describing

# A string that the model reads: its greatest length is a setting.
Text = Annotated[str, Meta(extra={"limit": "max_text"})]
_NOT_AN_ID = "is not an id: 1 to 128 letters, digits, '_' or '-' make one."
Id = Annotated[str, Meta(pattern=ID_PATTERN, extra={"says": _NOT_AN_ID})]


def id_of(prefix: str) -> Meta:
    pattern = f"^{prefix}[A-Za-z0-9_-]{{0,{128 - len(prefix)}}}$"
    return Meta(pattern=pattern, extra={"says": _NOT_AN_ID, "prefix": prefix})


IdOfResponse = Annotated[str, id_of("resp")]
IdOfConversation = Annotated[str, id_of("conv")]


def note(text: str) -> Meta:
    return Meta(description=text)


def name_of(most: int) -> Meta:
    says = "may hold letters, digits, '_' and '-' only."
    return Meta(min_length=1, max_length=most, pattern="^[A-Za-z0-9_-]+$", extra={"says": says})


def some(things: str, most: int | str) -> Meta:
    """Describe an array of at most so many `things`; a string names the setting with that number."""
    if isinstance(most, str):
        return Meta(extra={"things": things, "limit": most})
    return Meta(max_length=most, extra={"things": things})


def shape(name: str, about: str, base: type[Struct] = Struct, /, **fields: Any) -> Any:
    """Make a shape of fields that are types, or pairs of a type and a default."""
    pairs = [(field, *kind) if isinstance(kind, tuple) else (field, kind) for field, kind in fields.items()]
    declared = [(*pair, UNSET) if UnsetType in get_args(pair[1]) else pair for pair in pairs]
    return defstruct(name, declared, bases=(base,), namespace={"__doc__": about} if about else None, kw_only=True)


def shaped(shape: type[Struct]) -> Meta:
    """Describe an object by a shape."""
    REFERRED.append(shape)
    return Meta(extra_json_schema=refer(shape), extra={"check": make_check(shape)})


def one_of(*shapes: type[Struct], other: type[Struct] | None = None) -> Meta:
    """Describe an object by the shape whose `type` it has, or by that for all other types."""
    known = {kind: make_check(shape) for shape in shapes for kind in kinds_of(shape)}
    otherwise = make_check(other) if other is not None else None

    def check(value: Any, limits: Limits) -> Any:
        if type(value) is not dict:
            refuse_type(value, "", "an object")
        kind = value.get("type")
        chosen = known.get(kind, otherwise) if type(kind) is str else None
        if chosen is None:
            if kind is None:
                refuse_missing(".type")
            chosen = known[check_enum(kind, ".type", known)]
        return chosen(value, limits)

    every = (*shapes, other) if other is not None else shapes
    REFERRED.extend(every)
    return Meta(extra_json_schema={"anyOf": [refer(shape) for shape in every]}, extra={"check": check})


def kinds_of(shape: type[Struct]) -> list[str]:
    """Return the values that the `type` of a shape can have."""
    (tag,) = (each.type for each in msgspec.structs.fields(shape) if each.name == "type")
    return [str(kind) for kind in cast(inspect.LiteralType, inspect.type_info(tag)).values]


def refer(shape: type[Struct]) -> Json:
    return {"$ref": REF.format(name=shape.__name__)}


# -- making checks


def make_check(described: Any) -> Check:
    return _make(inspect.type_info(described))


def make_checks(shape: type[Struct]) -> dict[str, Check]:
    """Make the checks of a shape's fields."""
    return {field.name: _make(field.type) for field in cast(inspect.StructType, inspect.type_info(shape)).fields}


def drop_nulls(value: Json) -> None:
    for name in [name for name, given in value.items() if given is None]:
        del value[name]


def _make(info: inspect.Type) -> Check:
    info, extra = (info.type, info.extra or {}) if isinstance(info, inspect.Metadata) else (info, {})
    return extra.get("check") or _MAKERS[type(info)](info, extra)


def _make_number(info: inspect.IntType | inspect.FloatType, extra: Json) -> Check:
    whole = isinstance(info, inspect.IntType)
    kinds, expected, below, above = _INTEGER if whole else _NUMBER
    least, most = info.ge, MAX_INTEGER if info.le is None else info.le

    def check(value: Any, limits: Limits) -> float:
        if type(value) not in kinds:
            refuse_type(value, "", expected)
        if least is not None and value < least:
            raise WrongField(f"must be at least {least}.", code=below)
        if info.gt is not None and value <= info.gt:
            raise WrongField(f"must be more than {info.gt}.", code=below)
        if value > most:
            raise WrongField(f"must be at most {most}.", code=above)
        return value if whole else float(value)

    return check


def _make_str(info: inspect.StrType, extra: Json) -> Check:
    least, limit = info.min_length or 0, extra.get("limit")
    matches = re.compile(info.pattern).fullmatch if info.pattern is not None else None
    prefix: str | None = extra.get("prefix")

    def check(value: Any, limits: Limits) -> str:
        if type(value) is not str:
            refuse_type(value, "", "a string")
        if len(value) < least:
            raise WrongField("must not be empty.", code="string_below_min_length")
        most = getattr(limits, limit) if limit else info.max_length
        if most is not None and len(value) > most:
            refuse_length(value, most, "characters", "string_above_max_length")
        if matches is not None and matches(value) is None:
            if prefix is not None and not value.startswith(prefix):
                problem = f"'{shorten(value)}'. Expected an ID that begins with '{prefix}'."
                raise WrongField(problem, sentence="Invalid '{}': {}")  # in OpenAI's words
            raise WrongField(extra["says"])
        return value

    return check


def _make_literal(info: inspect.LiteralType, extra: Json) -> Check:
    values = cast(tuple[str, ...], info.values)
    return lambda value, limits: value if value in values else check_enum(value, "", values)


def _make_list(info: inspect.ListType, extra: Json) -> Check:
    inner, limit, things = _make(info.item_type), extra.get("limit"), extra.get("things", "elements")

    def check(value: Any, limits: Limits) -> list[Any]:
        if type(value) is not list:
            refuse_type(value, "", "an array")
        most = getattr(limits, limit) if limit else info.max_length
        if most is not None and len(value) > most:
            refuse_length(value, most, things, "array_above_max_length")
        kept: list[Any] = []
        try:
            for element in value:
                kept.append(inner(element, limits))
        except WrongField as wrong:
            raise wrong.under(f"[{len(kept)}]") from None
        return kept

    return check


def _make_dict(info: inspect.DictType, extra: Json) -> Check:
    """Make the check of an object with keys of any name. Those that are called `things` have no paths of their own."""
    if isinstance(info.value_type, inspect.AnyType):
        return check_object
    check_key, check_inner, things = _make(info.key_type), _make(info.value_type), extra.get("things")
    counted, code = (things, "array_above_max_length") if things else ("pairs", "object_above_max_properties")

    def check(value: Any, limits: Limits) -> Json:
        if info.max_length is not None and len(check_object(value, limits)) > info.max_length:
            refuse_length(value, info.max_length, counted, code)
        for key, inner in value.items():
            path = "" if things else f".{shorten(key)}"
            try:
                check_key(key, limits)
                path = f".{key}"
                check_inner(inner, limits)
            except WrongField as wrong:
                raise wrong.under(path) from None
        return cast(Json, value)

    return check


def _make_struct(info: inspect.StructType, extra: Json) -> Check:
    """Make the check of an object of this shape, which fills in its defaults.

    A shape may have two functions of its own: `complete`, for rules that types cannot express, and `hint`, for the end
    of the message that a field is missing.
    """
    fields: list[tuple[str, Check, Any, Any]] = []
    for field in info.fields:
        # A required field has no default, and one that stays out where it is left out has UNSET.
        default = field.default if field.required or field.default is not NODEFAULT else UNSET
        if not (field.name == "type" and isinstance(field.type, inspect.LiteralType)):  # the shape was chosen by it
            fields.append((field.name, _make(field.type), default, field.default_factory))
    hint: Callable[[Json], str] = getattr(info.cls, "hint", lambda value: "")
    complete: Callable[[Json], None] | None = getattr(info.cls, "complete", None)

    def check(value: Any, limits: Limits) -> Json:
        if type(value) is not dict:
            refuse_type(value, "", "an object")
        kept, name = {**value}, ""
        try:
            for name, check_field, default, make in fields:
                given = kept.get(name)
                if given is not None:
                    kept[name] = check_field(given, limits)
                elif make is not NODEFAULT:
                    kept[name] = make()
                elif default is NODEFAULT:
                    refuse_missing("", hint(kept))
                elif default is not UNSET:
                    kept[name] = default
        except WrongField as wrong:
            raise wrong.under(f".{name}") from None
        if complete is not None:
            complete(kept)
        return kept

    return check


def _make_union(info: inspect.UnionType, extra: Json) -> Check:
    members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
    if len(members) == 1:
        return _make(members[0])
    plain = [member.type if isinstance(member, inspect.Metadata) else member for member in members]
    checks = {_DECODED.get(type(info), str): _make(member) for info, member in zip(plain, members, strict=True)}
    expected = " or ".join(_KINDS[kind] for kind in checks)

    def check(value: Any, limits: Limits) -> Any:
        chosen = checks.get(type(value))
        return refuse_type(value, "", expected) if chosen is None else chosen(value, limits)

    return check


def _check_bool(value: object, limits: Limits) -> bool:
    return value if type(value) is bool else refuse_type(value, "", "a boolean")


# Types of members of unions, as JSON is decoded, but strings.
_DECODED: dict[type, type] = {inspect.ListType: list, inspect.DictType: dict, inspect.StructType: dict}
_MAKERS: dict[type, Callable[..., Check]] = {
    inspect.AnyType: lambda info, extra: lambda value, limits: value,
    inspect.BoolType: lambda info, extra: _check_bool,
    inspect.IntType: _make_number,
    inspect.FloatType: _make_number,
    inspect.StrType: _make_str,
    inspect.LiteralType: _make_literal,
    inspect.ListType: _make_list,
    inspect.DictType: _make_dict,
    inspect.StructType: _make_struct,
    inspect.UnionType: _make_union,
}
# Check an id that stands alone, under the name of its parameter.
check_response_id: Callable[[object, str], str] = partial(check_value, make_check(IdOfResponse))
check_conversation_id: Callable[[object, str], str] = partial(check_value, make_check(IdOfConversation))
