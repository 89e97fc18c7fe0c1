"""The grammar of a response's events: which event opens, grows and ends what, and which field carries the text.

The rules of the stream:

1. Events are numbered 0, 1, 2, ... without gap or repeat.
2. The first is `response.created`. `response.queued` and `response.in_progress` may follow, once each and in this
   order. The response's id never changes. Only a response that is in progress can become `completed`; it can become
   `incomplete`, `failed` or `cancelled` from the queue, too.
3. Items come only while the response is in progress. They are added at output_index 0, 1, 2, ..., each with an id of
   its own and status `in_progress`; several may be open at a time.
4. An item holds texts, one row of TEXTS each. A text with a part type lies in a part: the part is added, its text grows
   and ends, the part ends, and only then may the next part be added or the item end. A text without a part type lies in
   the item itself, and ends before its item does. Item types that are not in the table may have any events between
   their `added` and their `done`.
5. The deltas of a text add up to the text in its `done`, which is also the text in the part's `done`, with the
   annotations that were added; parts and texts are those in the item's `done`. An item keeps its id, type, call_id,
   name, role and lists of parts from `added` to `done`, and each of its events that names an item names that id.
6. A call that this server makes (`mcp_call`) is announced with its arguments, begins with CALL_BEGUN, and ends with
   `response.mcp_call.completed` or `.failed` before its item does. One that was never begun may fail, or end with its
   item alone; one may begin again. An upstream that makes the call itself begins it before its arguments.
7. The terminal event comes when no item is open, carries exactly the items that ended, in order, and is the last.
"""

import msgspec

OPENING_EVENTS = ("response.created", "response.queued", "response.in_progress")
TERMINAL_STATUSES = frozenset({"completed", "incomplete", "failed", "cancelled"})
TERMINAL_EVENTS = frozenset(f"response.{status}" for status in TERMINAL_STATUSES)
LIFECYCLE_EVENTS = TERMINAL_EVENTS.union(OPENING_EVENTS)

ITEM_ADDED, ITEM_DONE = "response.output_item.added", "response.output_item.done"
ANNOTATION_ADDED = "response.output_text.annotation.added"
CALL_BEGUN = "response.mcp_call.in_progress"


class PartList(msgspec.Struct, frozen=True):
    """A list of an item in which parts lie, and the events of these parts."""

    name: str  # of the item's field
    index_field: str  # the field in which events carry a part's position
    added: str
    done: str


CONTENT = PartList("content", "content_index", "response.content_part.added", "response.content_part.done")
SUMMARY = PartList(
    "summary", "summary_index", "response.reasoning_summary_part.added", "response.reasoning_summary_part.done"
)


class Text(msgspec.Struct, frozen=True):
    """A kind of text that grows."""

    item: str  # the type of item that it belongs to
    part: str | None  # the type of part that it lies in; None: it lies in the item itself
    parts: PartList | None
    events: str  # the name of its events, without the last word
    field: str  # holds the whole text: in its `done`, in its part, or in its item
    beside: str | None  # what its `done` carries besides the text
    delta: str = ""  # the event by which it grows
    done: str = ""  # the event with the whole text

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "delta", f"{self.events}.delta")
        msgspec.structs.force_setattr(self, "done", f"{self.events}.done")


# fmt: off
TEXTS = (
    #    item                part              in       events                              field        beside
    Text("message",          "output_text",    CONTENT, "response.output_text",             "text",      "logprobs"),
    Text("message",          "refusal",        CONTENT, "response.refusal",                 "refusal",   None),
    Text("reasoning",        "reasoning_text", CONTENT, "response.reasoning_text",          "text",      None),
    Text("reasoning",        "summary_text",   SUMMARY, "response.reasoning_summary_text",  "text",      None),
    Text("function_call",    None,             None,    "response.function_call_arguments", "arguments", "name"),
    Text("custom_tool_call", None,             None,    "response.custom_tool_call_input",  "input",     None),
    Text("mcp_call",         None,             None,    "response.mcp_call_arguments",      "arguments", None),
)
# fmt: on
OUTPUT_TEXT, REFUSAL, REASONING_TEXT, SUMMARY_TEXT, FUNCTION_ARGUMENTS, CUSTOM_INPUT, MCP_ARGUMENTS = TEXTS

# Events that Open Responses names otherwise than OpenAI.
OPEN_RESPONSES_NAMES = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}

# The table by event, under either name, by type of part and by type of item.
DELTAS = {name: text for text in TEXTS for name in (text.delta, OPEN_RESPONSES_NAMES.get(text.delta, text.delta))}
DONES = {name: text for text in TEXTS for name in (text.done, OPEN_RESPONSES_NAMES.get(text.done, text.done))}
PART_TEXTS = {text.part: text for text in TEXTS if text.part is not None}
ITEM_TEXTS = {text.item: text for text in TEXTS if text.part is None}
PART_LISTS = {parts.name: parts for parts in (CONTENT, SUMMARY)}
PART_EVENTS = {event: parts for parts in (CONTENT, SUMMARY) for event in (parts.added, parts.done)}
