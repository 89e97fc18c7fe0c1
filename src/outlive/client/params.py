"""The keyword arguments that are handed on to the SDK, with the SDK's own types."""

from __future__ import annotations

from collections.abc import Mapping

from openai import Timeout
from openai.types.responses import ResponseIncludable
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from typing_extensions import TypedDict


class CreateParams(ResponseCreateParamsBase, total=False):
    """Whatever `client.responses.create` takes, except `stream`."""

    extra_headers: Mapping[str, str] | None
    extra_query: Mapping[str, object] | None
    extra_body: object | None
    timeout: float | Timeout | None


class RetrieveParams(TypedDict, total=False):
    """Whatever `client.responses.retrieve` takes, except `stream` and `starting_after`."""

    include: list[ResponseIncludable]
    include_obfuscation: bool
    extra_headers: Mapping[str, str] | None
    extra_query: Mapping[str, object] | None
    timeout: float | Timeout | None
