"""Options of a create that have a structure of their own."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct

from outlive.core.events import Json
from outlive.core.requests.checks import (
    Given,
    Id,
    check_value,
    drop_nulls,
    make_check,
    name_of,
    one_of,
    refuse_unsupported,
)

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
INCLUDABLE: tuple[str, ...] = get_args(Includable)

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Summary = Literal["auto", "concise", "detailed"]
Truncation = Literal["auto", "disabled"]


class ConversationRef(Struct):
    """A conversation, by its id."""

    id: Id


class SimpleFormat(Struct):
    """Text, or JSON of any shape."""

    type: Literal["text", "json_object"]


class SchemaFormat(Struct, kw_only=True):
    """JSON of the shape that the schema describes."""

    type: Literal["json_schema"]
    name: Annotated[str, name_of(64)]
    schema: Json
    description: str | None = None
    strict: bool = False


class TextOptions(Struct):
    """The form of the answer's text."""

    format: Given[Annotated[Json, one_of(SimpleFormat, SchemaFormat)]] = UNSET
    verbosity: Given[Literal["low", "medium", "high"]] = UNSET

    complete = staticmethod(drop_nulls)  # so that defaults show in their place


class ReasoningOptions(Struct):
    """The amount of reasoning, and how much of it is shown."""

    effort: Given[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]] = UNSET
    summary: Given[Summary] = UNSET
    generate_summary: Given[Summary] = UNSET
    context: Given[Literal["auto", "current_turn", "all_turns"]] = UNSET
    mode: Given[str] = UNSET


class CacheOptions(Struct):
    """The use of the model server's cache of prompts; with `prewarm` the model is not asked."""

    mode: Given[Literal["implicit", "explicit"]] = UNSET
    ttl: Given[str] = UNSET
    prewarm: Given[bool] = UNSET


class StreamingOptions(Struct):
    """Options of a stream, which change nothing here."""

    include_obfuscation: Given[bool] = UNSET


class ImageOptions(Struct):
    context_compression: Given[Literal["auto", "enabled", "disabled"]] = UNSET

    @staticmethod
    def complete(image: Json) -> None:
        if image.get("context_compression") == "enabled":
            refuse_unsupported(".context_compression", "it does not compress images.")


class ContextManagement(Struct):
    """When to make a long context shorter: above so many tokens, or above what suits the model."""

    type: Annotated[str, Meta(extra_json_schema={"const": "compaction"})]
    compact_threshold: Given[Annotated[int, Meta(ge=1000)]] = UNSET

    @staticmethod
    def complete(entry: Json) -> None:
        if entry["type"] != "compaction":
            refuse_unsupported(".type", "'compaction' is the only way it manages a context.")


_check_metadata = make_check(Metadata)


def parse_metadata(value: object) -> dict[str, str]:
    return {} if value is None else check_value(_check_metadata, value, "metadata")
