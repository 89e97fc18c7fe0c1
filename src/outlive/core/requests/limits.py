"""Limits of one request."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Limits(msgspec.Struct, frozen=True):
    """The most that one request may hold; a request above any of them is refused before anything is stored."""

    max_items: Annotated[int, Meta(ge=1), "Items in one request."] = 10_000
    max_depth: Annotated[int, Meta(ge=1), "Nesting of a request's JSON."] = 100
    max_text: Annotated[int, Meta(ge=1), "Characters in one string."] = 10_485_760
    max_tools: Annotated[int, Meta(ge=0), "Tools in one request."] = 512
