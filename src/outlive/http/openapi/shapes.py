"""The shapes that requests and answers share: items, their parts, tools, and how each is described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from outlive.core.requests.content import MAX_FILE_ID
from outlive.core.requests.items import MAX_CALL_ID, MAX_NAME
from outlive.core.requests.tools import MAX_TOOL_NAME

T = TypeVar("T")
# A field that may be left out, and one that may be null as well, which is the same.
Given: TypeAlias = T | UnsetType
Maybe: TypeAlias = T | UnsetType | None

REF = "#/components/schemas/{name}"

CallId = Annotated[str, Meta(min_length=1, max_length=MAX_CALL_ID)]
Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


def note(text: str) -> Meta:
    return Meta(description=text)


def choice(values: Sequence[str]) -> Meta:
    return Meta(extra_json_schema={"enum": list(values)})


def one_of(*shapes: type[Struct]) -> Meta:
    return Meta(extra_json_schema={"anyOf": [refer(shape.__name__) for shape in shapes]})


def refer(name: str) -> dict[str, Any]:
    return {"$ref": REF.format(name=name)}


class TextPart(Struct):
    """Text in a message, or in a tool's output."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(Struct):
    """What the model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


class ImagePart(Struct):
    """An image, by its address, as a data URL, or by an id that the model's server knows."""

    type: Literal["input_image"]
    image_url: Maybe[Annotated[str, Meta(min_length=1)]] = UNSET
    file_id: Maybe[Annotated[str, Meta(min_length=1, max_length=MAX_FILE_ID)]] = UNSET
    detail: Maybe[Literal["auto", "low", "high", "original"]] = UNSET


class FilePart(Struct):
    """A file: its data, its address, or an id that the model's server knows."""

    type: Literal["input_file"]
    file_data: Maybe[Annotated[str, Meta(min_length=1)]] = UNSET
    file_url: Maybe[Annotated[str, Meta(min_length=1)]] = UNSET
    file_id: Maybe[Annotated[str, Meta(min_length=1, max_length=MAX_FILE_ID)]] = UNSET
    filename: Maybe[str] = UNSET


class Audio(Struct):
    data: Annotated[str, Meta(min_length=1)]
    format: Annotated[str, Meta(min_length=1)]


class AudioPart(Struct):
    """Sound, as base64."""

    type: Literal["input_audio"]
    input_audio: Audio


class VideoPart(Struct):
    """A video, by its address."""

    type: Literal["input_video"]
    video_url: Annotated[str, Meta(min_length=1)]


PARTS: tuple[type[Struct], ...] = (TextPart, RefusalPart, ImagePart, FilePart, AudioPart, VideoPart)
Part = Annotated[Any, one_of(*PARTS)]


class Message(Struct):
    """A message. Given without a `type` or an `id`, it gets them."""

    role: Role
    content: str | list[Part]
    type: Given[Literal["message"]] = UNSET
    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class FunctionCall(Struct):
    """The model wants a function to be called; whoever gave the tool calls it, and sends the output."""

    type: Literal["function_call"]
    call_id: CallId
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    arguments: Annotated[str, Meta(description="JSON, as the model wrote it.")]
    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class FunctionCallOutput(Struct):
    """What a function's call came to."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: str | list[Part]
    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class CustomToolCall(Struct):
    """The model wants a custom tool to be called, with one text."""

    type: Literal["custom_tool_call"]
    call_id: CallId
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    input: str
    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class CustomToolCallOutput(Struct):
    """What a custom tool's call came to."""

    type: Literal["custom_tool_call_output"]
    call_id: CallId
    output: str | list[Part]
    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class Reasoning(Struct):
    """What the model thought, as far as it is told."""

    type: Literal["reasoning"]
    summary: Maybe[list[Part]] = UNSET
    content: Maybe[list[Part]] = UNSET
    encrypted_content: Maybe[str] = UNSET
    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class Compaction(Struct):
    """Stands for all that came before it."""

    type: Literal["compaction"]
    encrypted_content: str
    id: Maybe[str] = UNSET


class ItemReference(Struct):
    """Stands for an item that is stored already."""

    id: str
    type: Maybe[Literal["item_reference"]] = UNSET


class OtherItem(Struct):
    """An item of any other kind, such as a hosted tool's; it is kept whole."""

    type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}(:[A-Za-z0-9_.-]{1,64})?$")]
    id: Maybe[str] = UNSET
    status: Maybe[str] = UNSET


KNOWN_ITEMS: dict[str, type[Struct]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": CustomToolCall,
    "custom_tool_call_output": CustomToolCallOutput,
    "reasoning": Reasoning,
    "compaction": Compaction,
}


class FunctionTool(Struct):
    """A function that the client carries out."""

    type: Literal["function"]
    name: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME, pattern="^[A-Za-z0-9_-]+$")]
    description: Maybe[str] = UNSET
    parameters: Maybe[dict[str, Any]] = UNSET
    strict: Maybe[bool] = UNSET


class CustomTool(Struct):
    """A tool of one text that the client carries out."""

    type: Literal["custom"]
    name: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME, pattern="^[A-Za-z0-9_-]+$")]
    description: Maybe[str] = UNSET


class OtherTool(Struct):
    """A tool that the server, or the model's server, carries out."""

    type: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME)]


TOOLS: tuple[type[Struct], ...] = (FunctionTool, CustomTool, OtherTool)
Tool = Annotated[Any, one_of(*TOOLS)]
