"""Event names: OpenAI and Open Responses differ in a few, and each response uses one set of names.

Drafts are made with OpenAI's names. Those of a response that was created under the other names are renamed before they
are numbered, so that its journal keeps the names that it began with, whatever the setting says by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from outlive.core.events import AnyDraft, Channel, Delta, Draft
from outlive.core.grammar import OPEN_RESPONSES_NAMES

EventNames = Literal["openai", "open-responses"]


class Renaming:
    """Renames drafts to the names of Open Responses."""

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[Channel, Channel] = {}

    def follow(self, feed: Callable[[bytes], list[AnyDraft]]) -> Callable[[bytes], list[AnyDraft]]:
        """Wrap a source of drafts: what it returns is renamed."""
        return lambda chunk: self.rename(feed(chunk))

    def rename(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        return [self._rename(draft) if draft.type in OPEN_RESPONSES_NAMES else draft for draft in drafts]

    def _rename(self, draft: AnyDraft) -> AnyDraft:
        name = OPEN_RESPONSES_NAMES[draft.type]
        if type(draft) is Draft:
            return Draft(name, draft.fields)
        assert type(draft) is Delta
        channel = self._channels.get(draft.channel)
        if channel is None:
            channel = self._channels[draft.channel] = draft.channel.renamed(name)
        return Delta(channel, draft.text)
