"""The fit of a context into the model's window: estimates of token counts, and truncation.

Estimates are for upstreams that cannot count. Four bytes of UTF-8 count as a token: about right for most languages and
tokenizers, and too much for some. Images and files count by their kind.

Truncation drops the oldest items first: whole turns, so that the rest still begins with a user's message, as many
servers want it; then, from the newest turn, one call after the other, each with its output. Instructions stay, and so
do the newest user message and everything that no model has answered yet.
"""

from collections.abc import Iterable

import msgspec

from outlive.core.context.assemble import CALLERS, call_of, is_call, is_output
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse

BYTES_PER_TOKEN = 4
PER_ITEM = 4  # the tokens that a chat template puts around a message
PER_IMAGE = 1000
PER_IMAGE_LOW = 85
# For a file or a recording, in characters of base64; most of it is not text.
CHARACTERS_PER_TOKEN = 16
# Characters of a text whose bytes are counted; the others are as long on average.
SAMPLE = 64 * 1024

_encode = msgspec.json.Encoder().encode

# Fields that describe an item itself and are not for the model.
_ENVELOPE = frozenset({"id", "type", "status", "role", "call_id", "encrypted_content", "logprobs", "annotations"})


def estimate_request(request: CreateResponse, items: Iterable[Json]) -> int:
    """Estimate everything that the model would read."""
    total = sum(map(estimate_item, items))
    for tool in request.tools:
        total += PER_ITEM + _json({name: value for name, value in tool.items() if name not in ("type", "strict")})
    if request.instructions:
        total += PER_ITEM + _text(request.instructions)
    form = request.text.get("format") or {}
    return total + (_json(form["schema"]) if "schema" in form else 0)


def estimate_item(item: Json) -> int:
    return PER_ITEM + sum(_value(value) for name, value in item.items() if name not in _ENVELOPE)


def _value(value: object) -> int:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return sum(_part(part) if isinstance(part, dict) else _value(part) for part in value)
    return 0 if value is None else _part(value) if isinstance(value, dict) else _json(value)


def _part(part: Json) -> int:
    if "image_url" in part or part.get("type") == "input_image":
        return PER_IMAGE_LOW if part.get("detail") == "low" else PER_IMAGE
    data = part.get("file_data") or part.get("video_url")
    if data is None and isinstance(part.get("input_audio"), dict):
        data = part["input_audio"].get("data")
    if isinstance(data, str):
        return PER_ITEM + len(data) // CHARACTERS_PER_TOKEN
    text = part.get("text")
    return _text(text) if isinstance(text, str) else _json({k: v for k, v in part.items() if k not in _ENVELOPE})


def _text(text: str) -> int:
    if text.isascii():
        return -(-len(text) // BYTES_PER_TOKEN)
    sample = text[:SAMPLE]
    return -(-len(sample.encode("utf-8", "replace")) * len(text) // len(sample) // BYTES_PER_TOKEN)


def _json(value: object) -> int:
    return -(-len(_encode(value)) // BYTES_PER_TOKEN)


# -- truncation


def truncate(items: list[Json], excess: int) -> list[Json]:
    """Drop the oldest items that make up `excess` tokens, by estimate; fewer when the rest must stay."""
    dropped: set[int] = set()
    for group in _groups(items, tail_of(items)):
        if excess <= 0:
            break
        dropped.update(group)
        excess -= sum(estimate_item(items[position]) for position in group)
    return [item for position, item in enumerate(items) if position not in dropped]


def tail_of(items: list[Json]) -> int:
    """Return the position from which on no model has answered: the last messages and outputs, and their calls."""
    start = len(items)
    while start > 0 and is_given(items[start - 1]):
        start -= 1
    answered = {call_of(item) for item in items[start:] if is_output(item)}
    # The last call of an id is the one that is answered: ids may be used again, and late calls are repeated.
    calls = {item["call_id"]: position for position, item in enumerate(items[:start]) if is_call(item)}
    first = min((position for call_id, position in calls.items() if call_id in answered), default=start)
    while 0 < first < start and items[first - 1].get("type") == "reasoning":
        first -= 1
    return first


def is_given(item: Json) -> bool:
    """Return True for an item that a model was given, in contrast to one that it made."""
    if item.get("type") == "message":
        return item.get("role") in CALLERS
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
        if not is_instruction(items[position]):
            turns[-1].append(position)
    # Within the newest turn: calls with their outputs, and reasoning with the item that it led to.
    groups = [turn for turn in turns if turn]
    calls: dict[str, list[int]] = {}
    reasoning: list[int] = []
    for position in range(question + 1, tail):
        item = items[position]
        if item.get("type") == "reasoning":
            reasoning.append(position)
        elif is_instruction(item):
            continue
        elif is_output(item) and (calling := calls.get(call_of(item) or "")) is not None:
            calling.append(position)
        else:
            groups.append([*reasoning, position])
            reasoning = []
            if is_call(item):
                calls[item["call_id"]] = groups[-1]
    return groups


def is_instruction(item: Json) -> bool:
    """Return True for what always stays: instructions, and the tools that come as an item."""
    kind = item.get("type")
    return kind == "additional_tools" or (kind == "message" and item.get("role") in ("system", "developer"))
