"""The sieve: what of a model's step may be shown at once, and what only when the step is over.

A call that this server makes itself is never shown half: from its first draft on everything is held until the step has
ended, when its arguments are whole. And the end of an item is held until something follows it. So a journal in which
nothing is open says that the model had more to do, and it can simply be asked again; had it been done, the response's
end would stand in the same commit.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from outlive.core.events import AnyDraft, Delta, Draft, Json

_ADDED, _DONE = "response.output_item.added", "response.output_item.done"


class RequestedCall(msgspec.Struct, frozen=True):
    """A call of one of the server's own tools, in its place among the drafts."""

    output_index: int
    name: str  # as the model calls the tool
    arguments: str
    whole: bool  # False: the model was cut off before its arguments ended


class ToolCallBuffer:
    """Sifts the drafts of one step."""

    __slots__ = ("_held", "_names", "_stopped")

    def __init__(self, names: Container[str]) -> None:
        self._names = names  # of the server's own tools
        self._held: list[AnyDraft] = []
        self._stopped = False  # a call of ours has begun: nothing more is shown

    def feed(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        """What may be shown of these, and of what was held before."""
        shown: list[AnyDraft] = []
        for draft in drafts:
            if self._stopped:
                self._held.append(draft)
            elif type(draft) is Delta:
                shown += self._release()
                shown.append(draft)
            elif draft.type.endswith(".done"):
                self._held.append(draft)
            else:
                shown += self._release()
                self._stopped = self._is_ours(draft)
                (self._held if self._stopped else shown).append(draft)
        return shown

    def end(self, drafts: list[AnyDraft]) -> list[AnyDraft | RequestedCall]:
        """The step is over: everything else, in order, with calls of our own tools in place of their drafts."""
        held = [*self._held, *drafts]
        self._held = []
        ours = {_index_of(draft) for draft in held if self._is_ours(draft)}
        done = {
            draft.fields["output_index"]: draft.fields["item"]
            for draft in held
            if type(draft) is Draft and draft.type == _DONE
        }
        rest: list[AnyDraft | RequestedCall] = []
        for draft in held:
            index = _index_of(draft)
            if index not in ours:
                rest.append(draft)
            elif draft.type == _ADDED:
                rest.append(_read(index, done[index]))
        return rest

    def _release(self) -> list[AnyDraft]:
        held, self._held = self._held, []
        return held

    def _is_ours(self, draft: AnyDraft) -> bool:
        if type(draft) is not Draft or draft.type != _ADDED:
            return False
        item = draft.fields["item"]
        return item["type"] == "function_call" and item["name"] in self._names


def _index_of(draft: AnyDraft) -> int:
    """Which item a draft is about; -1: none, as only events that nobody here knows can be."""
    return int(draft.channel.output_index if isinstance(draft, Delta) else draft.fields.get("output_index", -1))


def _read(output_index: int, item: Json) -> RequestedCall:
    return RequestedCall(output_index, item["name"], item["arguments"], item.get("status") == "completed")
