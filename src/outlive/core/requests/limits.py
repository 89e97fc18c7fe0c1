"""How much one request may hold."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What a request may hold at most; whatever is over is refused before anything is stored."""

    max_items: int = 10_000
    max_depth: int = 100
    max_text: int = 10_485_760  # characters in one string
    max_tools: int = 512
