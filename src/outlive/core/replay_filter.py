"""Filter of a repeated stream: an upstream sends a run again from the start, and only what the journal lacks passes.

The upstream repeats its events, and the same translator makes the same drafts of them, so the first ones are in the
journal already. They are folded and compared with it all the same: an upstream that repeats its run differently must
not put a hole, or a repetition, into an answer.
"""

from __future__ import annotations

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft
from outlive.core.fold import Fold

NOT_THE_SAME = "The model's server did not tell the same again when its run was taken up."


class ReplayFilter:
    """Drops the first `count` drafts, which must lead to what `fold` holds."""

    __slots__ = ("_fold", "_left", "_repeated")

    def __init__(self, fold: Fold, count: int) -> None:
        self._fold = fold
        self._left = count
        self._repeated = Fold({"status": "in_progress"})

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def filter(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        """Return the new drafts among these. Raises UpstreamFault when the repeated run differs from the journal."""
        if not self._left or not drafts:
            return drafts
        known, new = drafts[: self._left], drafts[self._left :]
        self._left -= len(known)
        self._repeated.apply(known)
        if self.is_over and self._repeated.output != self._fold.output:
            raise UpstreamFault(NOT_THE_SAME, retryable=False)
        return new

    def end(self) -> None:
        """Raise UpstreamFault when the stream ended before it reached the end of the journal."""
        if self._left:
            raise UpstreamFault(NOT_THE_SAME, retryable=False)
