"""Buffer of a model's step: holds back calls of the server's tools, and the end of each item.

A call that this server makes is never shown half: from its first draft on everything is held until the step has ended,
when its arguments are whole. And the end of an item is held until something follows it. So a journal in which nothing
is open means that the model had more to do, and it can simply be asked again; had it been done, the response's end
would stand in the same commit.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from outlive.core.events import AnyDraft, Delta, Draft, Json
from outlive.core.grammar import ITEM_ADDED, ITEM_DONE


class RequestedCall(msgspec.Struct, frozen=True):
    """A call of a server tool, at its position among the drafts."""

    output_index: int
    name: str  # the tool's name as the model knows it
    arguments: str
    whole: bool  # False: the model was cut off before its arguments ended


class ToolCallBuffer:
    """Buffers the drafts of one step."""

    __slots__ = ("_held", "_names", "_stopped")

    def __init__(self, names: Container[str]) -> None:
        self._names = names  # of the server tools
        self._held: list[AnyDraft] = []
        self._stopped = False  # a call of a server tool has begun: nothing more is released

    def feed(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        """Return the drafts that may be shown, of these and of those held before."""
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
                self._stopped = self._is_server_call(draft)
                (self._held if self._stopped else shown).append(draft)
        return shown

    def end(self, drafts: list[AnyDraft]) -> list[AnyDraft | RequestedCall]:
        """End the step: return all other drafts, in order, with calls of server tools in place of their drafts."""
        held = [*self._held, *drafts]
        self._held = []
        server_calls = {_index_of(draft) for draft in held if self._is_server_call(draft)}
        done = {
            draft.fields["output_index"]: draft.fields["item"]
            for draft in held
            if type(draft) is Draft and draft.type == ITEM_DONE
        }
        rest: list[AnyDraft | RequestedCall] = []
        for draft in held:
            index = _index_of(draft)
            if index not in server_calls:
                rest.append(draft)
            elif draft.type == ITEM_ADDED:
                rest.append(_read(index, done[index]))
        return rest

    def _release(self) -> list[AnyDraft]:
        held, self._held = self._held, []
        return held

    def _is_server_call(self, draft: AnyDraft) -> bool:
        if type(draft) is not Draft or draft.type != ITEM_ADDED:
            return False
        item = draft.fields["item"]
        return item["type"] == "function_call" and item["name"] in self._names


def _index_of(draft: AnyDraft) -> int:
    """Return the index of the item that a draft is about; -1 for an unknown event about none."""
    return int(draft.channel.output_index if isinstance(draft, Delta) else draft.fields.get("output_index", -1))


def _read(output_index: int, item: Json) -> RequestedCall:
    return RequestedCall(output_index, item["name"], item["arguments"], item.get("status") == "completed")
