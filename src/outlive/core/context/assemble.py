"""What the model is given: history and new input as one context that no upstream refuses, whatever happened earlier.

An abort may leave calls without outputs and outputs without calls; models' servers answer such a context with an error,
and would answer so for ever. So (D6b): a call that never became whole is left out, a whole call that nobody answered
gets a placeholder, an output without its call is left out, and every output stands right behind the calls it answers.
Messages that came between a call and its output stand before the turn of that call: the model is to go on from outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlive.core.context.tool_history import Names, retell
from outlive.core.events import Json

PLACEHOLDER_OUTPUT = "No output: this call was not carried out."

UNFINISHED = frozenset({"in_progress", "incomplete"})

_CALLERS = frozenset({"user", "system", "developer"})

# Calls whose output may be plain text. For others (a screenshot, a patch's status) nothing can be put in its place.
_ANSWERABLE = frozenset({"function_call", "custom_tool_call"})


def assemble(history: Sequence[Json], input: Sequence[Json], names: Names | None = None) -> list[Json]:
    """The whole context, oldest first, without repeats (D24) and with every call answered (D6b)."""
    items = _drop_repeats(retell((*history, *input), names))
    if not any("call_id" in item or _is_output(item) for item in items):
        return items  # most contexts have no calls in them
    items = _lift(items)
    answers = _pair(items)
    context: list[Json] = []
    outputs: dict[str, Json] = {}  # of the calls just before, by call_id, in the calls' order
    due = 0  # where the first of them was given; 0: one was not
    for position, item in enumerate(items):
        is_call = _is_call(item)
        if outputs and position < due and _is_models(item):
            context.append(item)
            continue
        # The calls of a group end with the first thing that is none; two of one id need an output between them.
        if not is_call or item["call_id"] in outputs:
            context += outputs.values()
            outputs.clear()
        if not is_call:
            if not _is_output(item):
                context.append(item)
            continue
        given = answers.get(position, 0)
        if (output := _output_of(item, items[given] if given else None)) is not None:
            due = min(due, given) if outputs else given
            context.append(item)
            outputs[item["call_id"]] = output
    context += outputs.values()
    return context


def find_stray_output(history: list[Json], input: list[Json]) -> int | None:
    """The position in `input` of an output that answers no call at all, not even one that was never finished."""
    asked = {item["call_id"] for item in (*history, *input) if _is_call(item)}
    return next((n for n, item in enumerate(input) if _is_output(item) and item.get("call_id") not in asked), None)


def _drop_repeats(items: Sequence[Json]) -> list[Json]:
    """Each item once, where it came first; a reference to an item that is here says nothing new either."""
    here = {item.get("id") for item in items if item.get("type") != "item_reference"}
    seen: set[str] = set()
    kept: list[Json] = []
    for item in items:
        item_id = item.get("id")
        if item_id in (here if item.get("type") == "item_reference" else seen):
            continue
        if isinstance(item_id, str):
            seen.add(item_id)
        kept.append(item)
    return kept


def _lift(items: list[Json]) -> list[Json]:
    """Messages between the model's calls and their outputs put before the turn in which it made them.

    Some clients send the question again with every output. Behind the output it would be asked anew, and so for ever.
    """
    lifted: list[Json] = []
    held: list[Json] = []  # messages behind calls, while an output may still come
    asked: set[str] = set()  # the calls of the model's last turn, which stands from `place` on
    place, is_turn = 0, False
    for item in items:
        if _is_output(item):
            if held and item.get("call_id") in asked:
                lifted[place:place] = held
                place, held = place + len(held), []
            lifted.append(item)
            is_turn = False
        elif asked and item.get("role") in _CALLERS:
            held.append(item)
            is_turn = False
        else:
            is_call = _is_call(item)
            if not is_turn:
                lifted += held
                held, asked, place = [], set(), len(lifted)
            if is_call:
                asked.add(item["call_id"])
            lifted.append(item)
            is_turn = is_call or _is_models(item)
    return lifted + held


def _pair(items: list[Json]) -> dict[int, int]:
    """The position of the output of each call that has one, by the call's position.

    An output answers the last call before it with its call_id: some models count their calls from zero every turn.
    """
    asked: dict[str, int] = {}
    answers: dict[int, int] = {}
    for position, item in enumerate(items):
        if _is_call(item):
            asked[item["call_id"]] = position
        elif _is_output(item):
            call = asked.pop(item["call_id"], None) if isinstance(item.get("call_id"), str) else None
            if call is not None:
                answers[call] = position
    return answers


def _output_of(call: Json, given: Json | None) -> Json | None:
    """The output to send with the call; None when the call is to be left out."""
    if call.get("status") in UNFINISHED:
        return None
    if given is not None or call["type"] not in _ANSWERABLE:
        return given
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": PLACEHOLDER_OUTPUT}


def _is_call(item: Json) -> bool:
    return isinstance(item.get("call_id"), str) and not _is_output(item)


def _is_models(item: Json) -> bool:
    """Whether it is a thought or a word of the model's, which may come between calls that it makes all at once."""
    return item.get("type") == "reasoning" or (item.get("type") == "message" and item.get("role") == "assistant")


def _is_output(item: Json) -> bool:
    return str(item.get("type")).endswith("_output")
