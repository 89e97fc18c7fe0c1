"""Truncation: what is left out of a context so that it fits into the model's window.

The oldest goes first: whole turns, so that what is left still begins with a user's message, as many servers want it;
then, out of the newest turn, one call after the other, each with its output. What instructs the model stays, and so do
the newest user message and whatever no model has answered yet.
"""

from __future__ import annotations

from outlive.core.context.estimate import estimate_item
from outlive.core.events import Json

_INSTRUCTING = frozenset({"system", "developer"})
_ASKING = frozenset({"user", "system", "developer"})


def truncate(items: list[Json], excess: int) -> list[Json]:
    """The items without the oldest that make up `excess` tokens, by estimate; fewer go when the rest must stay."""
    left = excess
    dropped: set[int] = set()
    for group in _groups(items, tail_of(items)):
        if left <= 0:
            break
        dropped.update(group)
        left -= sum(estimate_item(items[position]) for position in group)
    return [item for position, item in enumerate(items) if position not in dropped]


def tail_of(items: list[Json]) -> int:
    """Where what no model has answered yet begins: the last messages and outputs, and the calls that these answer."""
    start = len(items)
    while start > 0 and is_given(items[start - 1]):
        start -= 1
    answered = {item["call_id"] for item in items[start:] if _is_output(item)}
    first = next((n for n in range(start) if items[n].get("call_id") in answered), start)
    while 0 < first < start and items[first - 1].get("type") == "reasoning":
        first -= 1
    return first


def is_given(item: Json) -> bool:
    """Whether a model was given this, rather than having said it."""
    if item.get("type") == "message":
        return item.get("role") in _ASKING
    return _is_output(item) or item.get("type") == "mcp_approval_response"


def is_user_message(item: Json) -> bool:
    return item.get("type") == "message" and item.get("role") == "user"


def _groups(items: list[Json], tail: int) -> list[list[int]]:
    """The positions that may go, oldest first; those of one group go together."""
    # The question that what must stay belongs to: the newest, or the one that a call before it was made for.
    question = max((n for n, item in enumerate(items[: tail + 1]) if is_user_message(item)), default=-1)
    turns: list[list[int]] = [[]]
    for position in range(min(question, tail)):
        if is_user_message(items[position]):
            turns.append([])
        if not _is_instruction(items[position]):
            turns[-1].append(position)
    steps = [position for position in range(question + 1, tail) if not _is_instruction(items[position])]
    return [turn for turn in turns if turn] + _steps(items, steps)


def _steps(items: list[Json], positions: list[int]) -> list[list[int]]:
    """Of a turn's positions those that belong together: calls with outputs, and thoughts with what they led to."""
    groups: list[list[int]] = []
    calls: dict[str, list[int]] = {}
    thoughts: list[int] = []
    for position in positions:
        item = items[position]
        call_id = item.get("call_id")
        if item.get("type") == "reasoning":
            thoughts.append(position)
        elif _is_output(item) and call_id in calls:
            calls[call_id].append(position)
        else:
            groups.append([*thoughts, position])
            thoughts = []
            if isinstance(call_id, str):
                calls[call_id] = groups[-1]
    return groups


def _is_instruction(item: Json) -> bool:
    return item.get("type") == "message" and item.get("role") in _INSTRUCTING


def _is_output(item: Json) -> bool:
    return str(item.get("type")).endswith("_output") and isinstance(item.get("call_id"), str)
