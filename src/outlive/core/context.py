"""What the model is given: history and new input as one context that no upstream refuses, whatever happened earlier.

An abort may leave calls without outputs and outputs without calls; models' servers answer such a context with an error,
and would answer so for ever. So (D6b): a call that never became whole is left out, a whole call that nobody answered
gets a placeholder, an output without its call is left out, and every output stands right behind the calls it answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlive.core.events import Json

PLACEHOLDER_OUTPUT = "No output: this call was not carried out."

UNFINISHED = frozenset({"in_progress", "incomplete"})

# Calls whose output may be plain text. For others (a screenshot, a patch's status) nothing can be put in its place.
_ANSWERABLE = frozenset({"function_call", "custom_tool_call"})


def assemble(history: list[Json], input: list[Json]) -> list[Json]:
    """The whole context, oldest first, without repeats (D24) and with every call answered (D6b)."""
    items = _drop_repeats((*history, *input))
    answers = _pair(items)
    context: list[Json] = []
    outputs: dict[str, Json] = {}  # of the calls just before, by call_id, in the calls' order
    for position, item in enumerate(items):
        is_call = _is_call(item)
        # The calls of a group end with the first thing that is none; two of one id need an output between them.
        if not is_call or item["call_id"] in outputs:
            context += outputs.values()
            outputs.clear()
        if not is_call:
            if not _is_output(item):
                context.append(item)
        elif (output := _output_of(item, answers.get(position))) is not None:
            context.append(item)
            outputs[item["call_id"]] = output
    context += outputs.values()
    return context


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


def _pair(items: list[Json]) -> dict[int, Json]:
    """The output of each call that has one, by the call's position.

    An output answers the last call before it with its call_id: some models count their calls from zero every turn.
    """
    asked: dict[str, int] = {}
    answers: dict[int, Json] = {}
    for position, item in enumerate(items):
        if _is_call(item):
            asked[item["call_id"]] = position
        elif _is_output(item):
            call = asked.pop(item["call_id"], None) if isinstance(item.get("call_id"), str) else None
            if call is not None:
                answers[call] = item
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


def _is_output(item: Json) -> bool:
    return str(item.get("type")).endswith("_output")
