"""Telling a run again: of what its upstream repeats from the beginning, only what the journal lacks comes out.

The upstream tells the same events again, and the same translator makes the same drafts of them, so the first so many
are those that are in the journal already. They are folded and compared with it all the same: an upstream that tells its
run in another way the second time must not put a hole, or a repeat, into an answer.
"""

from __future__ import annotations

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft
from outlive.core.fold import Fold

NOT_THE_SAME = "The model's server did not tell the same again when its run was taken up."


class ReplayFilter:
    """Drops the first `count` drafts, which must lead to what `fold` holds."""

    __slots__ = ("_fold", "_left", "_told")

    def __init__(self, fold: Fold, count: int) -> None:
        self._fold = fold
        self._left = count
        self._told = Fold({"status": "in_progress"})

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def filter(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        """What is new of these. Raises UpstreamFault when it is not the same run that is told."""
        if not self._left or not drafts:
            return drafts
        known, new = drafts[: self._left], drafts[self._left :]
        self._left -= len(known)
        self._told.apply(known)
        if self.is_over and self._told.output != self._fold.output:
            raise UpstreamFault(NOT_THE_SAME, retryable=False)
        return new

    def end(self) -> None:
        """Raise UpstreamFault when there was less than is known already."""
        if self._left:
            raise UpstreamFault(NOT_THE_SAME, retryable=False)
