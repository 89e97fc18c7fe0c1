"""The parts that messages and tool outputs are made of. What is given is never changed, only copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from outlive.core.events import Json
from outlive.core.requests.checks import (
    check_enum,
    check_list,
    check_object,
    check_str,
    refuse,
    refuse_length,
    refuse_missing,
    refuse_type,
)
from outlive.core.requests.limits import Limits

# Characters; data URLs and base64 are far longer than any text.
MAX_IMAGE_URL = 20_971_520
MAX_FILE_DATA = 33_554_432
MAX_FILE_ID = 512

_IMAGE_DETAILS = ("auto", "low", "high", "original")
_FILE_DETAILS = ("auto", "low", "high")

Part: TypeAlias = Callable[[Json, str, Limits], Json]


def parse_content(value: object, param: str, limits: Limits) -> list[Json]:
    """The parts of an array of content."""
    return [parse_part(part, f"{param}[{n}]", limits) for n, part in enumerate(check_list(value, param))]


def parse_part(value: object, param: str, limits: Limits) -> Json:
    if type(value) is not dict:
        refuse_type(value, param, "an object")
    kind = value.get("type")
    parse = _PARTS.get(kind) if type(kind) is str else None
    if parse is None:
        if kind is None:
            refuse_missing(f"{param}.type")
        check_enum(kind, f"{param}.type", _PARTS)
    assert parse is not None  # check_enum refuses every other type
    return parse(value, param, limits)


def check_text(value: object, param: str, limits: Limits) -> str:
    """A string that the model reads."""
    if type(value) is not str:
        if value is None:
            refuse_missing(param)
        refuse_type(value, param, "a string")
    if len(value) > limits.max_text:
        refuse_length(len(value), param, limits.max_text)
    return value


def _parse_text(part: Json, param: str, limits: Limits) -> Json:
    check_text(part.get("text"), f"{param}.text", limits)
    return part


def _parse_output_text(part: Json, param: str, limits: Limits) -> Json:
    check_text(part.get("text"), f"{param}.text", limits)
    annotations = part.get("annotations")
    if annotations is None:
        return {**part, "annotations": []}
    check_list(annotations, f"{param}.annotations")
    return part


def _parse_refusal(part: Json, param: str, limits: Limits) -> Json:
    check_text(part.get("refusal"), f"{param}.refusal", limits)
    return part


def _parse_image(part: Json, param: str, limits: Limits) -> Json:
    url = part.get("image_url")
    if url is not None:
        check_str(url, f"{param}.image_url", least=1, most=MAX_IMAGE_URL)
    elif part.get("file_id") is None:
        refuse_missing(f"{param}.image_url")
    _check_file_id(part, param)
    if part.get("detail") is None:
        return {**part, "detail": "auto"}
    check_enum(part["detail"], f"{param}.detail", _IMAGE_DETAILS)
    return part


def _parse_file(part: Json, param: str, limits: Limits) -> Json:
    _check_file_id(part, param)
    if all(part.get(name) is None for name in ("file_data", "file_url", "file_id")):
        refuse(f"'{param}' needs 'file_data' or 'file_url'.", param, "missing_required_parameter")
    for name, most in (("file_data", MAX_FILE_DATA), ("file_url", MAX_IMAGE_URL)):
        if part.get(name) is not None:
            check_str(part[name], f"{param}.{name}", least=1, most=most)
    if part.get("filename") is not None:
        check_str(part["filename"], f"{param}.filename", most=limits.max_text)
    if part.get("detail") is not None:
        check_enum(part["detail"], f"{param}.detail", _FILE_DETAILS)
    return part


def _parse_audio(part: Json, param: str, limits: Limits) -> Json:
    param = f"{param}.input_audio"
    if part.get("input_audio") is None:
        refuse_missing(param)
    audio = check_object(part["input_audio"], param)
    for name in ("data", "format"):
        if audio.get(name) is None:
            refuse_missing(f"{param}.{name}")
        check_str(audio[name], f"{param}.{name}", least=1, most=MAX_FILE_DATA)
    return part


def _parse_video(part: Json, param: str, limits: Limits) -> Json:
    if part.get("video_url") is None:
        refuse_missing(f"{param}.video_url")
    check_str(part["video_url"], f"{param}.video_url", least=1, most=MAX_FILE_DATA)
    return part


def _check_file_id(part: Json, param: str) -> None:
    """Files are the upstream's, if it has any; one that has none refuses them (see Backend.check)."""
    if part.get("file_id") is not None:
        check_str(part["file_id"], f"{param}.file_id", least=1, most=MAX_FILE_ID)


_PARTS: dict[str, Part] = {
    "input_text": _parse_text,
    "input_image": _parse_image,
    "input_file": _parse_file,
    "input_audio": _parse_audio,
    "input_video": _parse_video,
    "output_text": _parse_output_text,
    "refusal": _parse_refusal,
    "text": _parse_text,
    "summary_text": _parse_text,
    "reasoning_text": _parse_text,
    "computer_screenshot": _parse_image,
}
