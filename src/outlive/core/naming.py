"""What events are called: OpenAI and Open Responses differ in a few names, and a response speaks the one or the other.

Everything here is made under OpenAI's names. A response that was created under the others has its drafts renamed before
they are numbered, so that its journal holds what it was created with, whatever the setting says by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from outlive.core.events import AnyDraft, Channel, Delta, Draft

EventNames = Literal["openai", "open-responses"]

OPEN_RESPONSES_NAMES = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
OPENAI_NAMES = {other: name for name, other in OPEN_RESPONSES_NAMES.items()}


class Renaming:
    """Gives drafts the names of Open Responses."""

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[Channel, Channel] = {}

    def follow(self, feed: Callable[[bytes], list[AnyDraft]]) -> Callable[[bytes], list[AnyDraft]]:
        """The same source of drafts, renamed."""
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
