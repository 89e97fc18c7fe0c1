"""Truncation: dropping items from a context so that it fits into the model's window.

The oldest go first: whole turns, so that the rest still begins with a user's message, as many servers want it; then,
from the newest turn, one call after the other, each with its output. Instructions stay, and so do the newest user
message and everything that no model has answered yet.
"""

from __future__ import annotations

from outlive.core.context.assemble import is_output
from outlive.core.context.estimate import estimate_item
from outlive.core.events import Json

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_GIVEN_ROLES = frozenset({"user", "system", "developer"})


def truncate(items: list[Json], excess: int) -> list[Json]:
    """Drop the oldest items that make up `excess` tokens, by estimate; fewer when the rest must stay."""
    left = excess
    dropped: set[int] = set()
    for group in _groups(items, tail_of(items)):
        if left <= 0:
            break
        dropped.update(group)
        left -= sum(estimate_item(items[position]) for position in group)
    return [item for position, item in enumerate(items) if position not in dropped]


def tail_of(items: list[Json]) -> int:
    """Return the position from which on no model has answered: the last messages and outputs, and their calls."""
    start = len(items)
    while start > 0 and is_given(items[start - 1]):
        start -= 1
    answered = {item.get("call_id") for item in items[start:] if is_output(item)} - {None}
    first = next((n for n in range(start) if items[n].get("call_id") in answered), start)
    while 0 < first < start and items[first - 1].get("type") == "reasoning":
        first -= 1
    return first


def is_given(item: Json) -> bool:
    """Return True for an item that a model was given, in contrast to one that it made."""
    if item.get("type") == "message":
        return item.get("role") in _GIVEN_ROLES
    return is_output(item) or item.get("type") == "mcp_approval_response"


def is_user_message(item: Json) -> bool:
    return item.get("type") == "message" and item.get("role") == "user"


def _groups(items: list[Json], tail: int) -> list[list[int]]:
    """Return the positions that may be dropped, oldest first; those of one group go together."""
    # The user's message that the items which must stay belong to: the newest, or the one that led to a call before it.
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
    """Group the positions of a turn: calls with their outputs, and reasoning with the item that it led to."""
    groups: list[list[int]] = []
    calls: dict[str, list[int]] = {}
    reasoning: list[int] = []
    for position in positions:
        item = items[position]
        call_id = item.get("call_id")
        if item.get("type") == "reasoning":
            reasoning.append(position)
        elif is_output(item) and call_id in calls:
            calls[call_id].append(position)
        else:
            groups.append([*reasoning, position])
            reasoning = []
            if isinstance(call_id, str):
                calls[call_id] = groups[-1]
    return groups


def _is_instruction(item: Json) -> bool:
    return item.get("type") == "message" and item.get("role") in _INSTRUCTION_ROLES
