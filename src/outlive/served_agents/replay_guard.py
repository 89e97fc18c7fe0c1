"""What an agent said and did before it was interrupted, so that its next life need not say or do it again."""

from __future__ import annotations

from collections.abc import Sequence

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.toolcalls.calls import INTERRUPTED

OTHERWISE = "The agent went another way than before it was interrupted."


class ReplayGuard:
    """Walks through the output so far, as the agent comes by it again."""

    def __init__(self, own: Sequence[Json], open_text: str | None) -> None:
        self._steps: list[tuple[str, str] | Json] = []
        for item in own:
            self._steps += _read(item)
        if open_text is not None:
            self._steps.append(("message", open_text))
        self._must_match = open_text is not None

    def take_text(self, kind: str, piece: str) -> str:
        """What of a piece was not said before. Raises UpstreamFault when it cannot follow a text that is half shown."""
        while piece and self._steps:
            step = self._steps[0]
            if not isinstance(step, tuple) or step[0] != kind:
                self._part()
                break
            said = step[1]
            shared = min(len(said), len(piece))
            if said[:shared] != piece[:shared]:
                self._part()
                break
            piece = piece[shared:]
            self._steps[:1] = [(kind, said[shared:])] if said[shared:] else []
        return piece

    def take_call(self, name: str, arguments: str, idempotent: bool) -> Json | None:
        """The item of the same call, if it was made before and need not, or must not, be made again."""
        if not self._steps:
            return None
        step = self._steps[0]
        if isinstance(step, tuple) or (step["name"], step["arguments"]) != (name, arguments):
            self._part()
            return None
        self._steps.pop(0)
        return None if idempotent and _was_interrupted(step) else step

    def _part(self) -> None:
        """From here on it is another way."""
        if self._must_match:
            raise UpstreamFault(OTHERWISE, retryable=False)
        self._steps = []


def _read(item: Json) -> list[tuple[str, str] | Json]:
    kind = item.get("type")
    if kind in ("message", "reasoning"):
        text = "".join(part.get("text", "") for part in item.get("content") or [])
        return [(kind, text)] if text else []
    return [item] if kind == "mcp_call" else []


def _was_interrupted(item: Json) -> bool:
    error = item.get("error")
    return isinstance(error, dict) and (error.get("content") or [{}])[0].get("text") == INTERRUPTED
