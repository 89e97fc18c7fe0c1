"""The check of a stream of events against the rules in `outlive.core.grammar`."""

from __future__ import annotations

from collections.abc import Sequence

from outlive.core.events import Json
from outlive.core.grammar import (
    ANNOTATION_ADDED,
    CALL_BEGUN,
    DELTAS,
    DONES,
    ITEM_ADDED,
    ITEM_DONE,
    MCP_ARGUMENTS,
    OPENING_EVENTS,
    PART_EVENTS,
    PART_LISTS,
    PART_TEXTS,
    TERMINAL_EVENTS,
    TEXTS,
    PartList,
)

# Rule 2: the statuses that may follow a status.
STATUSES: dict[str, frozenset[str]] = {
    "queued": frozenset({"queued", "in_progress", "incomplete", "failed", "cancelled"}),
    "in_progress": frozenset({"in_progress", "completed", "incomplete", "failed", "cancelled"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

# State -> event -> next state. An item begins in "open" and ends in "done".
States = dict[str, dict[str, str]]

# Rule 6.
_CALL: States = {
    "open": {MCP_ARGUMENTS.delta: "open", MCP_ARGUMENTS.done: "announced", CALL_BEGUN: "begun first"},
    "begun first": {MCP_ARGUMENTS.delta: "begun first", MCP_ARGUMENTS.done: "begun"},
    "announced": {CALL_BEGUN: "begun", "response.mcp_call.failed": "over", ITEM_DONE: "done"},
    "begun": {
        CALL_BEGUN: "begun",
        "outlive:tool.progress": "begun",
        "response.mcp_call.completed": "over",
        "response.mcp_call.failed": "over",
        ITEM_DONE: "done",
    },
    "over": {ITEM_DONE: "done"},
}


def _states_of(item_type: str) -> States:
    """Build the states of an item from its rows of the table (rule 4). Part events carry the type of their part."""
    states: States = {"open": {}}
    for text in TEXTS:
        if text.item != item_type:
            continue
        growing, ended = (text.part, f"{text.part} ended") if text.part is not None else ("open", "ended")
        if text.parts is not None:
            states["open"] |= {f"{text.parts.added} {text.part}": growing, ITEM_DONE: "done"}
        states.setdefault(growing, {}).update({name: growing for name, grown in DELTAS.items() if grown is text})
        states[growing] |= {name: ended for name, said in DONES.items() if said is text}
        states[ended] = {ITEM_DONE: "done"} if text.parts is None else {f"{text.parts.done} {text.part}": "open"}
    if item_type == "message":
        states["output_text"][ANNOTATION_ADDED] = "output_text"
    return states


ITEMS = {text.item: _states_of(text.item) for text in TEXTS} | {"mcp_call": _CALL}

# Events that are always about an item; one that is not in the grammar may be about none.
_OF_ITEMS = {ITEM_ADDED} | {
    event.partition(" ")[0] for states in ITEMS.values() for following in states.values() for event in following
}


def check(events: Sequence[Json], *, finished: bool = True) -> None:
    """Raise ValueError, with one sentence, when the events break a rule; unless `finished`, they may stop anywhere."""
    stream = _Stream()
    for position, event in enumerate(events):
        _require(
            event.get("sequence_number") == position,
            f"event {position} ({event.get('type')}) has the number {event.get('sequence_number')}",
        )
        try:
            stream.take(str(event["type"]), event)
        except KeyError as missing:
            raise ValueError(f"event {position} ({event.get('type')}) has no field {missing}.") from missing
        except ValueError as broken:
            raise ValueError(f"Event {position} ({event['type']}): {broken}") from None
    if finished:
        _require(stream.ended, "the stream has no terminal event")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence + ".")


class _Stream:
    """One response while its events are read."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.response_id: object = None
        self.opened = -1  # position in OPENING_EVENTS of the last one seen
        self.items: list[_Item] = []
        self.ended = False

    def take(self, type_: str, event: Json) -> None:
        _require(not self.ended, "something follows the terminal event")
        _require(self.opened >= 0 or type_ == OPENING_EVENTS[0], "the first event is not response.created")
        if type_ in OPENING_EVENTS:
            self._open(OPENING_EVENTS.index(type_), event["response"])
        elif type_ in TERMINAL_EVENTS:
            self._end(type_.removeprefix("response."), event["response"])
        else:
            self._take_item_event(type_, event)

    def _open(self, place: int, response: Json) -> None:
        _require(place > self.opened, f"it comes after {OPENING_EVENTS[max(self.opened, 0)]}")
        _require(not self.items, "it comes after the first item")
        _require(
            place == 0 or response["status"] == OPENING_EVENTS[place].removeprefix("response."), "its status is another"
        )
        _require(response["output"] == [], "its output is not empty")
        self.opened = place
        self._move(response)

    def _move(self, response: Json) -> None:
        status = response["status"]
        _require(self.status is not None or status in ("queued", "in_progress"), f"it begins as {status}")
        _require(self.status is None or status in STATUSES[self.status], f"{status} cannot follow {self.status}")
        _require(self.response_id in (None, response["id"]), "the response's id changed")
        self.status = status
        self.response_id = response["id"]

    def _take_item_event(self, type_: str, event: Json) -> None:
        _require(self.opened == 2, "it comes before response.in_progress")
        if "output_index" not in event and type_ not in _OF_ITEMS:
            return
        index = event["output_index"]
        if type_ == ITEM_ADDED:
            _require(index == len(self.items), f"it is added at {index}, but {len(self.items)} items were added so far")
            ids = [item.value["id"] for item in self.items]
            _require(event["item"]["id"] not in ids, "an earlier item has the same id")
            self.items.append(_Item(event["item"]))
            return
        _require(0 <= index < len(self.items), f"no item was added at output_index {index}")
        self.items[index].take(type_, event)

    def _end(self, status: str, response: Json) -> None:
        _require(response["status"] == status, f"its status is {response['status']}")
        self._move(response)
        still_open = [index for index, item in enumerate(self.items) if item.state != "done"]
        _require(not still_open, f"the items {still_open} were added but not done")
        _require(
            response["output"] == [item.value for item in self.items], "its output is not the items that were done"
        )
        self.ended = True


class _Item:
    """One output item while its events are read."""

    def __init__(self, value: Json) -> None:
        _require(value.get("status", "in_progress") == "in_progress", f"the item begins as {value.get('status')}")
        self.states = ITEMS.get(value["type"])
        for field in ("content", "summary", "arguments", "input") if self.states is not None else ():
            _require(not value.get(field), f"the item begins with {field} in it")
        self.value = value
        self.state = "open"
        self.pieces: list[str] = []
        self.annotations: list[Json] = []
        self.text = ""
        self.parts: dict[str, list[Json]] = {name: [] for name in PART_LISTS}

    def take(self, type_: str, event: Json) -> None:
        _require(self.state != "done", "its item is done already")
        _require("item_id" not in event or event["item_id"] == self.value["id"], "its item_id is another item's")
        if self.states is not None:
            self._step(self.states, f"{type_} {event['part']['type']}" if "part" in event else type_)
        if type_ == ITEM_DONE:
            self._finish(event["item"])
        elif self.states is not None:
            self._look(type_, event)

    def _step(self, states: States, key: str) -> None:
        following = states[self.state].get(key)
        _require(following is not None, f"it cannot come while its {self.value['type']} is at {self.state!r}")
        self.state = str(following)

    def _look(self, type_: str, event: Json) -> None:
        for parts in PART_LISTS.values():
            count = len(self.parts[parts.name])
            index = event.get(parts.index_field, count)
            _require(index == count, f"its {parts.index_field} is {index}, not {count}")
        if type_ in DELTAS:
            _require(isinstance(event["delta"], str), "its delta is not text")
            self.pieces.append(event["delta"])
        elif type_ in DONES:
            self.text = event[DONES[type_].field]
            _require(self.text == "".join(self.pieces), "its text is not what the deltas add up to")
        elif type_ in PART_EVENTS:
            self._take_part(PART_EVENTS[type_], type_, event["part"])
        elif type_ == ANNOTATION_ADDED:
            expected = len(self.annotations)
            _require(event["annotation_index"] == expected, f"its annotation_index is {event['annotation_index']}")
            self.annotations.append(event["annotation"])

    def _take_part(self, parts: PartList, type_: str, part: Json) -> None:
        text = "" if type_ == parts.added else self.text
        _require(part[PART_TEXTS[part["type"]].field] == text, "its part's text is another")
        if type_ == parts.added:
            self.pieces, self.annotations = [], []
            return
        _require(
            not self.annotations or part.get("annotations") == self.annotations,
            "its part's annotations are not those that were added",
        )
        self.parts[parts.name].append(part)

    def _finish(self, value: Json) -> None:
        for field in ("id", "type", "call_id", "name", "role"):
            _require(value.get(field) == self.value.get(field), f"the item's {field} changed")
        for field in PART_LISTS:
            _require(field in value or field not in self.value, f"the item has lost its {field}")
        # A patch that was cut off has no other status.
        is_over = value.get("status") != "in_progress" or value["type"] == "apply_patch_call"
        _require(is_over, "a done item is still in progress")
        if self.states is not None:
            for field, parts in self.parts.items():
                _require((value.get(field) or []) == parts, f"the item's {field} is not the parts that were done")
            for field in ("arguments", "input"):
                _require(value.get(field, self.text) == self.text, f"the item's {field} is not what was said")
        self.value = value
        self.state = "done"
