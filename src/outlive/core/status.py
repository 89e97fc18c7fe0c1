"""The life of a response and of its items: which status, and which event, may follow which.

The rules of the stream, in the order in which `check` looks at them:

1. Events are numbered 0, 1, 2, ... without gap or repeat.
2. The first is `response.created`. Then, once each and in this order, may come `response.queued` and
   `response.in_progress`; the status in them moves only as STATUSES allows, and the response's id never changes.
3. Items come only while the response is in progress. They are added at output_index 0, 1, 2, ..., each with its own id
   and status `in_progress`; several may be open at a time.
4. Within an item events follow ITEMS: every part that is added is done before the next part or the item's end.
   Types of items that are not in the table may have any events between `added` and `done`.
5. Deltas add up to the text in their `done`, that text is the one in the part's `done`, with the annotations that were
   added, and parts and texts are those in the item's `done`. An item keeps its id, type, call_id, name and role from
   `added` to `done`, and every event within it names that id, if any.
6. The terminal event comes when no item is open, carries exactly the items that were done, in order, and is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlive.core.events import TERMINAL_EVENTS, Json

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})

# A response may be cancelled, interrupted or given up before it ever ran, but only one that ran can be completed.
STATUSES: dict[str, frozenset[str]] = {
    "queued": frozenset({"queued", "in_progress", "incomplete", "failed", "cancelled"}),
    "in_progress": frozenset({"in_progress", "completed", "incomplete", "failed", "cancelled"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

_OPENING = ("response.created", "response.queued", "response.in_progress")

# Per type of item: state -> event -> next state. An item begins in "open" and ends in "done". Part events are told
# apart by the type of their part.
ITEMS: dict[str, dict[str, dict[str, str]]] = {
    "message": {
        "open": {
            "content_part.added output_text": "text",
            "content_part.added refusal": "refusal",
            "output_item.done": "done",
        },
        "text": {
            "output_text.delta": "text",
            "output_text.annotation.added": "text",
            "output_text.done": "text said",
        },
        "text said": {"content_part.done output_text": "open"},
        "refusal": {"refusal.delta": "refusal", "refusal.done": "refusal said"},
        "refusal said": {"content_part.done refusal": "open"},
    },
    "reasoning": {
        "open": {
            "content_part.added reasoning_text": "text",
            "reasoning_summary_part.added summary_text": "summary",
            "output_item.done": "done",
        },
        "text": {
            "reasoning_text.delta": "text",
            "reasoning_text.done": "text said",
            # As Open Responses calls them.
            "reasoning.delta": "text",
            "reasoning.done": "text said",
        },
        "text said": {"content_part.done reasoning_text": "open"},
        "summary": {"reasoning_summary_text.delta": "summary", "reasoning_summary_text.done": "summary said"},
        "summary said": {"reasoning_summary_part.done summary_text": "open"},
    },
    "function_call": {
        "open": {"function_call_arguments.delta": "open", "function_call_arguments.done": "said"},
        "said": {"output_item.done": "done"},
    },
    "custom_tool_call": {
        "open": {"custom_tool_call_input.delta": "open", "custom_tool_call_input.done": "said"},
        "said": {"output_item.done": "done"},
    },
    "mcp_call": {
        "open": {
            "mcp_call.in_progress": "theirs",
            "mcp_call_arguments.delta": "open",
            "mcp_call_arguments.done": "said",
        },
        # A model's server that makes the call itself says so before it tells the arguments.
        "theirs": {"mcp_call_arguments.delta": "theirs", "mcp_call_arguments.done": "begun"},
        # One that was never begun may still fail, or be left when the response ends; and one may be begun again.
        "said": {"mcp_call.in_progress": "begun", "mcp_call.failed": "over", "output_item.done": "done"},
        "begun": {
            "mcp_call.in_progress": "begun",
            "outlive:tool.progress": "begun",
            "mcp_call.completed": "over",
            "mcp_call.failed": "over",
            "output_item.done": "done",
        },
        "over": {"output_item.done": "done"},
    },
}

# Events that are always about an item; one that nobody knows may be about none.
_OF_ITEMS = {"output_item.added"} | {
    event.partition(" ")[0] for table in ITEMS.values() for following in table.values() for event in following
}

# The field that a `done` event, its part or its item holds the whole text in, where it is not called `text`.
_TEXT_FIELDS = {
    "refusal": "refusal",
    "function_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "mcp_call_arguments": "arguments",
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
    """One response as its events go by."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.response_id: object = None
        self.opened = -1  # position in _OPENING of the last one seen
        self.items: list[_Item] = []
        self.ended = False

    def take(self, type_: str, event: Json) -> None:
        _require(not self.ended, "something follows the terminal event")
        _require(self.opened >= 0 or type_ == _OPENING[0], "the first event is not response.created")
        if type_ in _OPENING:
            self._open(_OPENING.index(type_), event["response"])
        elif type_ in TERMINAL_EVENTS:
            self._end(type_.removeprefix("response."), event["response"])
        else:
            self._take_item_event(type_.removeprefix("response."), event)

    def _open(self, place: int, response: Json) -> None:
        _require(place > self.opened, f"it comes after {_OPENING[max(self.opened, 0)]}")
        _require(not self.items, "it comes after the first item")
        _require(place == 0 or response["status"] == _OPENING[place].removeprefix("response."), "its status is another")
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

    def _take_item_event(self, name: str, event: Json) -> None:
        _require(self.opened == 2, "it comes before response.in_progress")
        if "output_index" not in event and name not in _OF_ITEMS:
            return
        index = event["output_index"]
        if name == "output_item.added":
            _require(index == len(self.items), f"it is added at {index}, but {len(self.items)} items were added so far")
            ids = [item.value["id"] for item in self.items]
            _require(event["item"]["id"] not in ids, "an earlier item has the same id")
            self.items.append(_Item(event["item"]))
            return
        _require(0 <= index < len(self.items), f"no item was added at output_index {index}")
        self.items[index].take(name, event)

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
    """One output item as its events go by."""

    def __init__(self, value: Json) -> None:
        _require(value.get("status", "in_progress") == "in_progress", f"the item begins as {value.get('status')}")
        self.table = ITEMS.get(value["type"])
        for field in ("content", "summary", "arguments", "input") if self.table is not None else ():
            _require(not value.get(field), f"the item begins with {field} in it")
        self.value = value
        self.state = "open"
        self.pieces: list[str] = []
        self.annotations: list[Json] = []
        self.text = ""
        self.parts: dict[str, list[Json]] = {"content": [], "summary": []}

    def take(self, name: str, event: Json) -> None:
        _require(self.state != "done", "its item is done already")
        _require("item_id" not in event or event["item_id"] == self.value["id"], "its item_id is another item's")
        if self.table is not None:
            self._step(f"{name} {event['part']['type']}" if "part" in event else name)
        if name == "output_item.done":
            self._finish(event["item"])
        elif self.table is not None:
            for ending, look in _LOOKS.items():
                if name.endswith(ending):
                    look(self, name.removesuffix(ending), event)
                    break

    def _step(self, key: str) -> None:
        following = self.table[self.state].get(key) if self.table is not None else None
        _require(following is not None, f"it cannot come while its {self.value['type']} is at {self.state!r}")
        self.state = str(following)

    def _begin_part(self, name: str, event: Json) -> None:
        self._at_part(name, event, "")
        self.pieces = []
        self.annotations = []

    def _annotate(self, name: str, event: Json) -> None:
        self._at_index(event)
        expected = len(self.annotations)
        _require(event["annotation_index"] == expected, f"its annotation_index is {event['annotation_index']}")
        self.annotations.append(event["annotation"])

    def _grow(self, name: str, event: Json) -> None:
        _require(isinstance(event["delta"], str), "its delta is not text")
        self._at_index(event)
        self.pieces.append(event["delta"])

    def _say(self, name: str, event: Json) -> None:
        self.text = event[_TEXT_FIELDS.get(name, "text")]
        self._at_index(event)
        _require(self.text == "".join(self.pieces), "its text is not what the deltas add up to")

    def _end_part(self, name: str, event: Json) -> None:
        self._at_part(name, event, self.text)
        _require(
            not self.annotations or event["part"].get("annotations") == self.annotations,
            "its part's annotations are not those that were added",
        )
        self.parts["summary" if "summary" in name else "content"].append(event["part"])

    def _at_part(self, name: str, event: Json, text: str) -> None:
        part = event["part"]
        self._at_index(event)
        _require(part[_TEXT_FIELDS.get(part["type"], "text")] == text, "its part's text is another")

    def _at_index(self, event: Json) -> None:
        for field, parts in (("content_index", self.parts["content"]), ("summary_index", self.parts["summary"])):
            _require(event.get(field, len(parts)) == len(parts), f"its {field} is {event.get(field)}, not {len(parts)}")

    def _finish(self, value: Json) -> None:
        for field in ("id", "type", "call_id", "name", "role"):
            _require(value.get(field) == self.value.get(field), f"the item's {field} changed")
        _require(value.get("status") != "in_progress", "a done item is still in progress")
        if self.table is not None:
            for field, parts in self.parts.items():
                _require((value.get(field) or []) == parts, f"the item's {field} is not the parts that were done")
            for field in ("arguments", "input"):
                _require(value.get(field, self.text) == self.text, f"the item's {field} is not what was said")
        self.value = value
        self.state = "done"


# What else is looked at, by how the event's name ends; the first that fits counts.
_LOOKS: dict[str, Callable[[_Item, str, Json], None]] = {
    "_part.added": _Item._begin_part,
    ".annotation.added": _Item._annotate,
    "_part.done": _Item._end_part,
    ".delta": _Item._grow,
    ".done": _Item._say,
}
