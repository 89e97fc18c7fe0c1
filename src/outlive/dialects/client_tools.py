"""Tools of a fixed form that the client runs (`shell`, `apply_patch`, `computer`, ...), as functions: the schema that
the model is given, and the way from the arguments of a call to the item that the client expects, and back."""

import tomllib
from collections.abc import Callable
from importlib import resources
from math import isfinite
from typing import Any

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import check_depth

_decode = msgspec.json.Decoder().decode

_MOST_DEPTH = 50  # of arguments that an item carries as an object

_FUNCTIONS: Json = tomllib.loads(resources.files(__package__).joinpath("client_tools.toml").read_text())


class ClientTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a fixed form."""

    name: str  # of the function
    item: str  # the type of item that a call becomes
    description: str
    parameters: Json
    blank: Json  # the item's own fields while the arguments are not known, and where they do not fit
    fill: Callable[[Json], Json]  # makes the item's own fields of arguments that fit
    read: Callable[[Json], object]  # returns the arguments that the item was made of
    cut_off: str = "incomplete"  # the status of a call whose arguments never ended
    free: bool = False  # any object will do as arguments: the client that gives the schema checks them

    def fit(self, arguments: str) -> Json:
        """Return the item's own fields. Arguments that do not fit give a call that asks for nothing."""
        try:
            value = _decode(arguments)
            check_depth([value], _MOST_DEPTH)
            if not isinstance(value, dict):
                raise ValueError
            if self.free:
                return self.fill(value)
            if len(value) == 1:
                ((name, inner),) = value.items()
                if name not in self.parameters["properties"] and isinstance(inner, dict):
                    value = inner  # the model put it into an object of its own, as the items have it
            return self.fill(_fit(value, self.parameters))
        except (ValueError, LookupError, InvalidRequest, RecursionError):
            return self.blank

    def describe(self, given: Json) -> tuple[str, Json]:
        """Return the description and the parameters of the function: a request may give its own of a free one."""
        parameters, description = (given.get("parameters"), given.get("description")) if self.free else (None, None)
        return (
            description if isinstance(description, str) and description else self.description,
            parameters if isinstance(parameters, dict) and parameters else self.parameters,
        )


_TYPES: dict[str, type[Any]] = {"string": str, "integer": int, "array": list, "object": dict}


def _fit(given: Any, schema: Json) -> Any:
    """Return the value as the schema has it, without nulls and unknown fields. Raises ValueError."""
    value: Any = given
    kind: str = schema["type"]
    if kind == "integer" and type(value) is float and isfinite(value):
        value = round(value)
    if kind == "array" and schema["items"]["type"] == "string" and type(value) is str:
        value = [value]
    if not isinstance(value, _TYPES[kind]) or isinstance(value, bool) or value not in schema.get("enum", (value,)):
        raise ValueError
    if kind == "array":
        return [_fit(element, schema["items"]) for element in value]
    if kind != "object":
        return value
    if (inner := schema["additionalProperties"]) is not False:
        return {name: _fit(each, inner) for name, each in value.items()}
    fields = {name: each for name, each in value.items() if each is not None}
    if not fields.keys() >= set(schema["required"]):
        raise ValueError
    return {name: _fit(fields[name], each) for name, each in schema["properties"].items() if name in fields}


def _read_arguments(value: object, *left_out: str) -> object:
    """Return the arguments in a field of a call: as it has them, without nulls."""
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if each is not None and name not in left_out}


_POINT = ("x", "y")
# The fields that an action of `computer`, or an operation of `apply_patch`, must have, and those that are filled in.
_ACTIONS: dict[str, tuple[tuple[str, ...], Json]] = {
    "click": (_POINT, {"button": "left"}),
    "double_click": (_POINT, {}),
    "drag": (("path",), {}),
    "keypress": (("keys",), {}),
    "move": (_POINT, {}),
    "screenshot": ((), {}),
    "scroll": (_POINT, {"scroll_x": 0, "scroll_y": 0}),
    "type": (("text",), {}),
    "wait": ((), {}),
    "create_file": (("path",), {"diff": ""}),
    "update_file": (("path",), {"diff": ""}),
    "delete_file": (("path",), {}),
}


def _fill_action(given: Json) -> Json:
    """Return an action with the fields of its type only. Raises ValueError."""
    required, filled = _ACTIONS[given["type"]]
    if any(name not in given for name in required):
        raise ValueError
    fields = {name: given[name] for name in required} | {name: given.get(name, filled[name]) for name in filled}
    return {"type": given["type"], **fields}


def _read_actions(item: Json) -> object:
    actions = item.get("actions")
    return {"actions": actions if actions is not None else [item.get("action") or {"type": "screenshot"}]}


def _make_computer(description: str, blank: Json, fill: Callable[[Json], Json]) -> ClientTool:
    """Make the tool, or its older form, from what both have in common; the description is that of the actions."""
    parameters = _FUNCTIONS["computer"]["parameters"]
    actions = parameters["properties"]["actions"] | {"description": description}
    function = _FUNCTIONS["computer"] | {"parameters": parameters | {"properties": {"actions": actions}}}
    return ClientTool(**function, blank=blank, fill=fill, read=_read_actions)


# By the type of the tool.
CLIENT_TOOLS = {
    "shell": ClientTool(
        **_FUNCTIONS["shell"],
        blank={"action": {"commands": [], "timeout_ms": None, "max_output_length": None}},
        fill=lambda given: {"action": {"timeout_ms": None, "max_output_length": None, **given}},
        read=lambda item: _read_arguments(item.get("action")),
    ),
    "local_shell": ClientTool(
        **_FUNCTIONS["local_shell"],
        blank={"action": {"type": "exec", "command": [], "env": {}}},
        fill=lambda given: {"action": {"type": "exec", "env": {}, **given}},
        read=lambda item: _read_arguments(item.get("action"), "type"),
    ),
    "apply_patch": ClientTool(
        **_FUNCTIONS["apply_patch"],
        # An empty update changes nothing, whichever file it names.
        blank={"operation": {"type": "update_file", "path": "", "diff": ""}},
        fill=lambda given: {"operation": _fill_action(given)},
        read=lambda item: _read_arguments(item.get("operation")),
    ),
    "computer": _make_computer(
        "In their order.",
        {"actions": [], "pending_safety_checks": []},
        lambda given: {"actions": [_fill_action(each) for each in given["actions"]], "pending_safety_checks": []},
    ),
    "computer_use_preview": _make_computer(
        "One action.",
        {"action": {"type": "screenshot"}, "pending_safety_checks": []},
        lambda given: {"action": _fill_action(given["actions"][0]), "pending_safety_checks": []},
    ),
    "tool_search": ClientTool(
        **_FUNCTIONS["tool_search"],
        blank={"arguments": {}, "execution": "client"},
        fill=lambda given: {"arguments": given, "execution": "client"},
        read=lambda item: _read_arguments(item.get("arguments")),
    ),
}

# By the type of the items that its calls are.
BY_ITEM = {tool.item: tool for tool in CLIENT_TOOLS.values()} | {"computer_call": CLIENT_TOOLS["computer"]}
