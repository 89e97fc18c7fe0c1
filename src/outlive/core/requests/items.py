"""Items as callers send them and the parts in them, made whole: each item with an id, a type and perhaps a status."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from outlive.core.errors import NotFound
from outlive.core.events import Json
from outlive.core.ids import IdSource, item_prefix
from outlive.core.requests import checks
from outlive.core.requests.checks import Given, Id, Limits, Text, WrongField, one_of, shape

# Characters; data URLs and base64 are far longer than any text.
MAX_IMAGE_URL = 20_971_520
MAX_FILE_DATA = 33_554_432

Url = Annotated[str, Meta(min_length=1, max_length=MAX_IMAGE_URL)]
Data = Annotated[str, Meta(min_length=1, max_length=MAX_FILE_DATA)]
# Files are the upstream's, if it has any; one that has none refuses them (see Backend.check).
FileId = Annotated[str, Meta(min_length=1, max_length=512)]


InputTextType = Literal["input_text", "text", "summary_text", "reasoning_text"]
TextPart = shape("TextPart", "Text in a message, or in a tool's output.", type=InputTextType, text=Text)
OutputTextPart = shape(
    "OutputTextPart", "Text that the model wrote.", type=Literal["output_text"], text=Text, annotations=(list[Any], [])
)
RefusalPart = shape(
    "RefusalPart", "Text that the model wrote instead of an answer.", type=Literal["refusal"], refusal=Text
)


class ImagePart(Struct):
    """An image, by its address, as a data URL, or by an id that the model's server knows."""

    type: Literal["input_image", "computer_screenshot"]
    image_url: Given[Url] = UNSET
    file_id: Given[FileId] = UNSET
    detail: Literal["auto", "low", "high", "original"] = "auto"

    @staticmethod
    def complete(part: Json) -> None:
        if part.get("image_url") is None and part.get("file_id") is None:
            checks.refuse_missing(".image_url")


class FilePart(Struct):
    """A file: its data, its address, or an id that the model's server knows."""

    type: Literal["input_file"]
    file_data: Given[Data] = UNSET
    file_url: Given[Url] = UNSET
    file_id: Given[FileId] = UNSET
    filename: Given[Text] = UNSET
    detail: Given[Literal["auto", "low", "high"]] = UNSET

    @staticmethod
    def complete(part: Json) -> None:
        if all(part.get(name) is None for name in ("file_data", "file_url", "file_id")):
            raise WrongField("needs 'file_data' or 'file_url'.", code="missing_required_parameter")


Audio = shape("Audio", "", data=Data, format=Data)
AudioPart = shape("AudioPart", "Sound, as base64.", type=Literal["input_audio"], input_audio=Audio)
VideoPart = shape("VideoPart", "A video, by its address.", type=Literal["input_video"], video_url=Data)
Part = Annotated[Json, one_of(TextPart, OutputTextPart, RefusalPart, ImagePart, FilePart, AudioPart, VideoPart)]
Content = list[Part]


# Kinds that ask the server to do something. As parts of a request they are acted on; to keep them would mean nothing.
TRIGGER = "compaction_trigger"
REFERENCE = "item_reference"
STANDING_IN = frozenset({REFERENCE, "compaction"})
_CONTROLS = {
    TRIGGER: "it asks for a compaction; send it as the last item of a response's 'input'.",
    REFERENCE: "send the item itself; only a response's 'input' can refer to another.",
}

# Twice the length that the wire's reference gives, because other providers' ids are longer.
CallId = Annotated[str, Meta(min_length=1, max_length=128)]
CalledName = Annotated[str, Meta(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class AnyItem(Struct, kw_only=True):
    id: Given[Id] = UNSET


class CompletedItem(AnyItem, kw_only=True):
    status: Status = "completed"


class Message(CompletedItem, kw_only=True):
    """A message. Given without a `type` or an `id`, it gets them."""

    type: Given[Literal["message"]] = UNSET
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Content

    @staticmethod
    def complete(item: Json) -> None:
        if type(text := item["content"]) is str and item["role"] == "assistant":
            item["content"] = [{"type": "output_text", "text": text, "annotations": []}]
        elif type(text) is str:
            item["content"] = [{"type": "input_text", "text": text}]


class FunctionCall(CompletedItem, kw_only=True):
    """The model wants a function to be called; the client that gave the tool calls it, and sends the output."""

    type: Literal["function_call"]
    call_id: CallId
    name: CalledName
    arguments: Annotated[Text, checks.note("JSON, as the model wrote it.")]


class CustomToolCall(CompletedItem, kw_only=True):
    """The model wants a custom tool to be called, with one text."""

    type: Literal["custom_tool_call"]
    call_id: CallId
    name: CalledName
    input: Text


class ToolCallOutput(CompletedItem, kw_only=True):
    """The result of a function's or a custom tool's call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Text | Content


class ClientCall(AnyItem, kw_only=True):
    """The model wants the client's own shell, editor, computer or program to be used."""

    type: Literal["shell_call", "local_shell_call", "apply_patch_call", "computer_call", "program"]
    call_id: CallId
    action: Given[Json] = UNSET
    actions: Given[list[Json]] = UNSET
    operation: Given[Json] = UNSET
    status: Given[str] = UNSET


class CommandOutput(Struct):
    """The output of one command of a shell; without a `type`."""

    stdout: Given[Text] = UNSET
    stderr: Given[Text] = UNSET
    outcome: Given[Json] = UNSET


_check_part, _check_command = checks.make_check(Part), checks.make_check(CommandOutput)


def _check_client_part(value: object, limits: Limits) -> Any:
    """Check a part of a client's output: a part as in messages, or else the output of a command."""
    typed = type(value) is dict and value.get("type") is not None
    return (_check_part if typed else _check_command)(value, limits)


ClientPart = Annotated[Json, Meta(extra_json_schema={"type": "object"}, extra={"check": _check_client_part})]


class ClientCallOutput(AnyItem, kw_only=True):
    """The result of a client's own tool."""

    type: Literal["shell_call_output", "apply_patch_call_output", "computer_call_output", "program_output"]
    call_id: CallId
    output: Given[Text | list[ClientPart] | ClientPart] = UNSET
    status: Given[str] = UNSET


class LocalShellOutput(AnyItem, kw_only=True):
    """The result of a local shell. It names its call by `call_id`, or by its own `id`."""

    type: Literal["local_shell_call_output"]
    call_id: Given[CallId] = UNSET
    output: Text
    status: Given[str] = UNSET


class ToolSearch(AnyItem, kw_only=True):
    """A search for tools, or the tools that it found."""

    type: Literal["tool_search_call", "tool_search_output"]
    call_id: Given[CallId] = UNSET
    execution: Given[str] = UNSET
    tools: Given[list[Json]] = UNSET
    status: Given[str] = UNSET


class McpCall(AnyItem, kw_only=True):
    """A call of an MCP server's tool, or of this server's own, with its outcome."""

    type: Literal["mcp_call"]
    server_label: Text
    name: CalledName
    arguments: Text
    approval_request_id: Given[CallId] = UNSET
    output: Given[Text] = UNSET
    error: Given[Any] = UNSET
    status: Given[str] = UNSET


class McpListTools(AnyItem, kw_only=True):
    """The tools of an MCP server."""

    type: Literal["mcp_list_tools"]
    server_label: Text
    tools: list[Json]
    error: Given[Any] = UNSET


class ApprovalRequest(AnyItem, kw_only=True):
    """Asks a person to approve a call."""

    type: Literal["mcp_approval_request"]
    server_label: Text
    name: CalledName
    arguments: Text


class ApprovalResponse(AnyItem, kw_only=True):
    """A person's answer to an approval request."""

    type: Literal["mcp_approval_response"]
    approval_request_id: CallId
    approve: bool
    reason: Given[Text] = UNSET


class ReasoningItem(AnyItem, kw_only=True):
    """The model's reasoning, as far as it is shown."""

    type: Literal["reasoning"]
    summary: Content = []
    content: Given[Content] = UNSET
    encrypted_content: Given[Text] = UNSET
    status: Given[Status] = UNSET


Compaction = shape(
    "Compaction", "Stands for all items before it.", AnyItem, type=Literal["compaction"], encrypted_content=Text
)


class ItemReference(Struct, kw_only=True):
    """Stands for an item that is stored already."""

    type: Given[Literal["item_reference"]] = UNSET
    id: Id


class OtherItem(AnyItem, kw_only=True):
    """An item of any other kind, such as a hosted tool's, a vendor's or a newer one; it is kept whole."""

    type: Annotated[
        str,
        Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}(:[A-Za-z0-9_.-]{1,64})?$", extra={"says": "is not a type of item."}),
    ]
    call_id: Given[CallId] = UNSET
    status: Given[str] = UNSET


KEPT_ITEMS = (
    Message, FunctionCall, CustomToolCall, ToolCallOutput, ClientCall, ClientCallOutput, LocalShellOutput, ToolSearch,
    McpCall, McpListTools, ApprovalRequest, ApprovalResponse, ReasoningItem, Compaction,
)  # fmt: skip
KeptItem = Annotated[Json, one_of(*KEPT_ITEMS, other=OtherItem)]
InputItem = Annotated[Json, one_of(*KEPT_ITEMS, ItemReference, other=OtherItem)]

_check_item = checks.make_check(InputItem)
_check_array = checks.make_check(Annotated[list[Any], checks.some("items", "max_items")])


def parse_items(
    value: object, param: str, ids: IdSource, limits: Limits, at_most: int | None = None, *, in_request: bool = False
) -> list[Json]:
    """Parse an array of items, each once: an item given again, with the same id, is the same item.

    They are to be kept, unless they are the input of a request: among that may be references, and a trigger at the end.
    """
    if at_most is not None:
        limits = msgspec.structs.replace(limits, max_items=min(at_most, limits.max_items))
    items: list[Json] = []
    kinds: dict[str, str] = {}
    n = None
    try:
        given = _check_array(value, limits)
        checks.check_depth(given, limits.max_depth)
        for n, element in enumerate(given):
            item = parse_item(element, ids, limits)
            if element.get("id") is not None and _is_repeat(item, kinds):
                continue
            if (kind := item["type"]) in _CONTROLS and not in_request:
                checks.refuse_unsupported(".type", f"items of type '{kind}' cannot be kept: {_CONTROLS[kind]}")
            if kind == TRIGGER and n < len(given) - 1:
                raise WrongField(f"must be the last item of the input: it is a '{TRIGGER}'.")
            items.append(item)
    except WrongField as wrong:
        raise wrong.under(param if n is None else f"{param}[{n}]") from None
    return items


def make_message(text: str, ids: IdSource) -> Json:
    """Make the message that a text alone stands for: the item that `parse_item` makes of it and the role of a user."""
    content = [{"type": "input_text", "text": text}]
    return {"id": ids.new("msg"), "type": "message", "role": "user", "content": content, "status": "completed"}


def parse_item(value: object, ids: IdSource, limits: Limits) -> Json:
    if type(value) is not dict:
        checks.refuse_type(value, "", "an object")
    kind = value.get("type")
    if kind is None and "role" in value:
        kind = "message"
    elif kind is None:
        if value.keys() - {"type"} != {"id"}:
            checks.refuse_missing(".type")
        kind = REFERENCE
    if type(kind) is not str:
        checks.refuse_type(kind, ".type", "a string")
    item: Json = {"id": None, "type": kind, **value}
    item["type"] = kind
    item = _check_item(item, limits)
    if item["id"] is None:
        item["id"] = ids.new(item_prefix(kind))
    return item


def _is_repeat(item: Json, kinds: dict[str, str]) -> bool:
    """Return True if this id came before. Two kinds of item under one id are refused: to drop one would lose it."""
    kind = kinds.get(item["id"])
    if kind is None or (kind == REFERENCE and item["type"] != REFERENCE):
        kinds[item["id"]] = item["type"]
        return False
    if item["type"] not in (kind, REFERENCE):
        raise WrongField(f"is the id of two different items, a '{kind}' and a '{checks.shorten(item['type'])}'.", ".id")
    return True


# -- items that a request names instead of sending them


def find_references(items: list[Json]) -> list[str]:
    """Return the ids that are referred to, besides those of items that are there."""
    here = {item["id"] for item in items if item["type"] != REFERENCE}
    return [item["id"] for item in items if item["type"] == REFERENCE and item["id"] not in here]


def resolve(items: list[Json], found: Mapping[str, Json]) -> list[Json]:
    """Put the items that were found in place of their references. Raise NotFound naming one that was not."""
    missing = set(find_references(items)) - found.keys()
    for n, item in enumerate(items):
        if item["type"] == REFERENCE and item["id"] in missing:
            raise NotFound(
                f"Item with id '{item['id']}' not found. Items of responses with `store: false` are not kept; send the "
                "item itself.",
                param=f"input[{n}].id",
            )
    # A reference to an item that the input itself holds says nothing new.
    resolved = (found.get(item["id"]) if item["type"] == REFERENCE else item for item in items)
    return [item for item in resolved if item is not None]
