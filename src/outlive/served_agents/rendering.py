"""What tools and agents of users return, as text: a text as it is, anything else as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def render(result: object) -> str:
    if result is None:
        return ""
    return result if isinstance(result, str) else msgspec.json.encode(result, enc_hook=_show).decode()


def _show(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
