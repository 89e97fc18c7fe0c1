"""The timeline of a response: the times of its milestones, found in its journal page by page."""

import re
from bisect import bisect_right
from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.core.grammar import ITEM_ADDED, ITEM_DONE, TERMINAL_EVENTS

# Points of time that a timeline lists at most; of a longer journal every second is left out, every fourth, and so on.
MAX_FLUSHES = 2000

_names = "|".join(map(re.escape, (ITEM_ADDED, ITEM_DONE, *sorted(TERMINAL_EVENTS))))
# JSON has no raw newline, so a line that begins with `event: ` is always the first of a frame.
_MILESTONE = re.compile(rf"^event: ({_names})\ndata: (.+)$".encode(), re.M)
_DELTA = re.compile(rb'^event: response\.[\w.]+\.delta\ndata: {"type":"[^"]+","sequence_number":(\d+)', re.M)


class _Item(msgspec.Struct, frozen=True):
    type: str = ""
    id: Any = None
    name: Any = None
    status: Any = None


class _Event(msgspec.Struct):
    """The fields that a timeline needs, of an event or of a final Response object."""

    sequence_number: int = 0
    output_index: int = 0
    item: _Item = _Item()
    outlive: Json | None = None


_decode = msgspec.json.Decoder(_Event).decode


def read_details(snapshot: bytes | None) -> Json:
    """Return the extra object of a final Response object, without decoding the rest."""
    return (_decode(snapshot).outlive if snapshot is not None else None) or {}


class Milestones:
    """Collects the milestones of a journal, whose pages are added in order."""

    def __init__(self, resumed_at: list[int]) -> None:
        """`resumed_at`: the first sequence number of each resumption."""
        self.last = -1
        self.entries: list[Json] = []
        self.first_token_at: float | None = None
        self.flushes: list[tuple[int, float]] = []  # first sequence number and time of a commit
        self._resumed_at = resumed_at
        self._calls: dict[int, Json] = {}  # by output index
        self._stride, self._seen = 1, 0

    def add(self, last: int, frames: bytes, times: list[tuple[int, float]]) -> None:
        """Add a page: its last number, its frames, and the first number and the time of each of its commits."""
        starts = [first for first, _ in times]

        def place(kind: str, number: int) -> Json:
            return {"type": kind, "at": times[bisect_right(starts, number) - 1][1], "sequence_number": number}

        if self.first_token_at is None and (found := _DELTA.search(frames)) is not None:
            self.entries.append(place("first_token", int(found[1])))
            self.first_token_at = self.entries[-1]["at"]
        self.entries += [place("continuation", n) for n in self._resumed_at if self.last < n <= last]
        for found in _MILESTONE.finditer(frames):
            name = found[1].decode()
            if name in TERMINAL_EVENTS:
                self.entries.append(place("end", last) | {"status": name.removeprefix("response.")})
                continue
            event = _decode(found[2])
            if event.item.type.endswith("_call") or event.item.type == "mcp_approval_request":
                self._add_call(event, place("tool_call", event.sequence_number), name == ITEM_ADDED)
        for flush in times:
            if self._seen % self._stride == 0:
                self.flushes.append(flush)
            self._seen += 1
        while len(self.flushes) > MAX_FLUSHES:
            self.flushes = self.flushes[::2]
            self._stride *= 2
        self.last = last

    def _add_call(self, event: _Event, entry: Json, begins: bool) -> None:
        item = event.item
        if begins:
            entry |= {"item_id": item.id, "item_type": item.type, "name": item.name, "ended_at": None, "status": None}
            self._calls[event.output_index] = entry
            self.entries.append(entry)
        elif (call := self._calls.pop(event.output_index, None)) is not None:
            call |= {"ended_at": entry["at"], "status": item.status, "name": item.name or call["name"]}


def make_timeline(
    milestones: Milestones, taken: list[tuple[float, str, int]], created_at: float, ended_at: float | None
) -> Json:
    """Return the milestones in the order of their times, with the nodes that took the response."""
    entries: list[Json] = [{"type": "queued", "at": created_at, "sequence_number": 0}]
    for number, (at, node, counted) in enumerate(taken):
        kind = "cancel" if not counted else "takeover" if number else "start"
        entries.append({"type": kind, "at": at, "sequence_number": None, "node": node})
    entries += milestones.entries
    return {
        "created_at": created_at,
        "first_token_at": milestones.first_token_at,
        "ended_at": ended_at,
        "events": milestones.last + 1,
        "entries": sorted(entries, key=lambda entry: entry["at"]),
        "flushes": milestones.flushes,
    }
