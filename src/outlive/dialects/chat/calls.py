"""The function calls of one Chat Completions stream: finding the call that a fragment belongs to."""

from __future__ import annotations

import msgspec

from outlive.core.events import Json
from outlive.dialects.open_items import GrowingCall, is_json


class Fragment:
    """One entry of a chunk's `tool_calls`; missing or odd fields are replaced by empty ones."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, entry: Json) -> None:
        function = entry.get("function")
        if not isinstance(function, dict):
            function = {}
        index, call_id, name = entry.get("index"), entry.get("id"), function.get("name")
        arguments = function.get("arguments")
        self.index = index if isinstance(index, int) else None
        self.id = call_id if isinstance(call_id, str) else ""
        self.name = name if isinstance(name, str) else ""
        # Some servers send the arguments as an object instead of its JSON.
        self.arguments = arguments if isinstance(arguments, str) else _encode(arguments)


class StreamedCalls:
    """The calls so far, in the order in which they appeared.

    Servers mark where a fragment belongs in several ways. With an index: the call of that index, unless it names a
    function under a new id (servers that number every call 0). Without: the call of its id; a new call if it has an
    id or names a function, unless that only repeats the name of a call whose arguments are not whole; else the last.
    """

    __slots__ = ("_by_id", "_by_index", "_last", "_seen_ids", "all")

    def __init__(self) -> None:
        self._by_index: dict[int, GrowingCall] = {}
        self._by_id: dict[str, GrowingCall] = {}
        self._seen_ids: set[str] = set()
        self._last: GrowingCall | None = None
        self.all: list[GrowingCall] = []

    def place(self, fragment: Fragment) -> GrowingCall:
        """Return the call that the fragment belongs to, with the fragment added to it."""
        call = self._find(fragment)
        if call is None:
            call = GrowingCall()
            self.all.append(call)
            if fragment.index is not None:
                self._by_index[fragment.index] = call
        self._last = call
        if fragment.id:
            self._by_id[fragment.id] = call
            if not call.call_id and fragment.id not in self._seen_ids:
                call.call_id = fragment.id
                self._seen_ids.add(fragment.id)
        call.name = call.name or fragment.name
        if fragment.arguments:
            call.grow(fragment.arguments)
        return call

    def next_named(self) -> GrowingCall | None:
        """Return the first call that has a name and was not opened yet."""
        return next((call for call in self.all if call.name and not call.was_opened), None)

    def _find(self, fragment: Fragment) -> GrowingCall | None:
        if fragment.index is not None:
            call = self._by_index.get(fragment.index)
            renewed = call is not None and fragment.name and fragment.id and call.call_id not in ("", fragment.id)
            return None if renewed else call
        if fragment.id:
            return self._by_id.get(fragment.id)
        last = self._last
        if last is not None and fragment.name:
            return last if last.name in ("", fragment.name) and not is_json(last.arguments) else None
        return last


def _encode(arguments: object) -> str:
    return "" if arguments is None else msgspec.json.encode(arguments).decode()
