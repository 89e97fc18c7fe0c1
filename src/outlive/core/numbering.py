"""The only place that counts: drafts get their sequence numbers here, and become frames."""

from __future__ import annotations

from collections.abc import Iterable

from outlive.core.events import AnyDraft


def number(drafts: Iterable[AnyDraft], after: int) -> list[bytes]:
    """The frames of `drafts`, numbered from `after + 1` on."""
    return [draft.frame(n) for n, draft in enumerate(drafts, after + 1)]
