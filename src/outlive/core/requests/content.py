"""Parts of messages and tool outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from outlive.core.events import Json
from outlive.core.requests.checks import Given, Text, WrongField, one_of, refuse_missing

# Characters; data URLs and base64 are far longer than any text.
MAX_IMAGE_URL = 20_971_520
MAX_FILE_DATA = 33_554_432

Url = Annotated[str, Meta(min_length=1, max_length=MAX_IMAGE_URL)]
Data = Annotated[str, Meta(min_length=1, max_length=MAX_FILE_DATA)]
# Files are the upstream's, if it has any; one that has none refuses them (see Backend.check).
FileId = Annotated[str, Meta(min_length=1, max_length=512)]


class TextPart(Struct):
    """Text in a message, or in a tool's output."""

    type: Literal["input_text", "text", "summary_text", "reasoning_text"]
    text: Text


class OutputTextPart(Struct):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: Text
    annotations: list[Any] = []


class RefusalPart(Struct):
    """Text that the model wrote instead of an answer."""

    type: Literal["refusal"]
    refusal: Text


class ImagePart(Struct):
    """An image, by its address, as a data URL, or by an id that the model's server knows."""

    type: Literal["input_image", "computer_screenshot"]
    image_url: Given[Url] = UNSET
    file_id: Given[FileId] = UNSET
    detail: Literal["auto", "low", "high", "original"] = "auto"

    @staticmethod
    def complete(part: Json) -> None:
        if part.get("image_url") is None and part.get("file_id") is None:
            refuse_missing(".image_url")


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


class Audio(Struct):
    data: Data
    format: Data


class AudioPart(Struct):
    """Sound, as base64."""

    type: Literal["input_audio"]
    input_audio: Audio


class VideoPart(Struct):
    """A video, by its address."""

    type: Literal["input_video"]
    video_url: Data


Part = Annotated[Json, one_of(TextPart, OutputTextPart, RefusalPart, ImagePart, FilePart, AudioPart, VideoPart)]
Content = list[Part]
