"""Compaction: a long context becomes a short one, a summary and what must stay word for word, packed into one item.

An item of ours carries everything it stands for, sealed, so it can go out to a client and come back to any server that
shares the seal. There are two sorts. One that was made within a response stands for all that came before it. One that
was made by the compact endpoint is handed out together with the user's messages, and stands for the rest.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable

import msgspec

from outlive.core.context.estimate import estimate_item
from outlive.core.context.truncation import is_given, is_user_message, tail_of
from outlive.core.errors import BrokenSeal
from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.requests.create import CreateResponse

# What `encrypted_content` of ours begins with: so that others' are told apart from ours without opening them.
PREFIX = "outlive.1."

# Tokens of the user's messages that are kept word for word, and of a summary.
KEPT_TOKENS = 8_000
SUMMARY_TOKENS = 4_000

PROMPT = """\
The conversation so far is about to be replaced by a summary of it. Write this summary now.

Whoever goes on with the conversation will know of it only what you write, besides the user's own latest messages. So \
say what the user wants, with every requirement, preference and decision; what was done and found out, with the exact \
names, numbers, paths, identifiers and quotations that may be needed again; what tools returned, as far as it still \
matters; what is unfinished, promised or open, and what comes next. Leave out what is settled and will not matter \
again.

Write plain text in the language of the conversation, without a preface. Do not answer the user, and call no tools."""

# What stands around a summary: neighbours of one role become one message for some servers, so it must be told apart.
LEAD = """\
(The earlier part of this conversation was replaced by a summary of it. What the user said before this line has been \
answered, unless the summary says otherwise. The summary:)

"""
END = "\n\n(End of the summary. The conversation goes on here.)"


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a compaction item stands for."""

    summary: str
    before: list[Json] = []  # messages that stay, and stand before the summary
    after: list[Json] = []  # what nobody had answered yet, and stands after it
    beside: bool = False  # the user's messages stand beside the item, and stay where they are


Read = Callable[[Json], Compacted | None]


def is_ours(item: Json) -> bool:
    return item.get("type") == "compaction" and str(item.get("encrypted_content")).startswith(PREFIX)


def pack(compacted: Compacted, seal: Callable[[bytes], bytes]) -> str:
    """The `encrypted_content` of an item."""
    return PREFIX + b64encode(seal(zlib.compress(msgspec.json.encode(compacted)))).decode()


def unpack(item: Json, unseal: Callable[[bytes], bytes]) -> Compacted:
    """Raises BrokenSeal for what this server has not sealed, or not for this owner."""
    try:
        sealed = b64decode(str(item["encrypted_content"]).removeprefix(PREFIX), validate=True)
    except ValueError as error:
        raise BrokenSeal from error
    return _decode(zlib.decompress(unseal(sealed)))


def open_context(items: list[Json], read: Read) -> list[Json]:
    """The context with its newest compaction item unfolded in place of what that stands for. An item that cannot be
    read stands for nothing, and is left out."""
    for position in range(len(items) - 1, -1, -1):
        if is_ours(items[position]) and (compacted := read(items[position])) is not None:
            beside = [item for item in items[:position] if is_user_message(item)] if compacted.beside else []
            unfolded = [*beside, *compacted.before, _tell(compacted.summary), *compacted.after]
            return unfolded + _without_ours(items[position + 1 :])
    return _without_ours(items)


def split(items: list[Json], keep: int) -> tuple[list[Json], Compacted] | None:
    """What is to be summarised, and what stays word for word, for a context that a model is about to answer; None when
    nothing has come since the last summary."""
    tail = tail_of(items)
    if all(_is_summary(item) or is_given(item) for item in items[:tail]):
        return None
    before = _instructions(items[:tail]) + _latest(items[:tail], keep)
    return items[:tail], Compacted("", before, items[tail:])


def split_all(items: list[Json], keep: int) -> tuple[list[Json], Compacted]:
    """The same for a context that is to be compacted as it is, with nothing to be answered now. A call whose output is
    still to come stays."""
    answered = {item.get("call_id") for item in items if _is_output(item)}
    waiting = [item for item in items if _is_call(item) and item["call_id"] not in answered]
    told = [item for item in items if not any(item is one for one in waiting)]
    return told, Compacted("", _instructions(told) + _latest(told, keep), waiting)


def split_beside(items: list[Json]) -> tuple[list[Json], list[Json], Compacted]:
    """The same for the compact endpoint, which hands out all of the user's messages: these, in the middle."""
    told, compacted = split_all(items, 0)
    said = [item for item in told if is_user_message(item) and not _is_summary(item)]
    return told, said, msgspec.structs.replace(compacted, beside=True)


def ask_summary(request: CreateResponse) -> CreateResponse:
    """The request by which a model is asked to summarise: as like to the one it is for as can be, so that what the
    model's server has cached of that serves again."""
    most = SUMMARY_TOKENS if request.max_output_tokens is None else max(SUMMARY_TOKENS, request.max_output_tokens)
    return msgspec.structs.replace(
        request,
        input=[],
        tool_choice="none" if request.tools else "auto",
        max_output_tokens=most,
        max_tool_calls=None,
        text={},
        top_logprobs=None,
        include=[],
        stream=False,
        background=False,
        store=False,
        previous_response_id=None,
        conversation=None,
        metadata={},
        truncation=None,
        context_management=None,
        compacts=False,
    )


def prompt() -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROMPT}]}


def show(item: Json, output_index: int) -> list[AnyDraft]:
    """The item as it appears in a stream. Its content is there only at the end."""
    place: Json = {"item_id": item["id"], "output_index": output_index}
    return [
        Draft("response.output_item.added", {"output_index": output_index, "item": {**item, "encrypted_content": ""}}),
        Draft("response.compaction.compacting", place),
        Draft("response.output_item.done", {"output_index": output_index, "item": item}),
    ]


def _tell(summary: str) -> Json:
    # The user's, for many models' servers take no other message in the middle of a conversation.
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": LEAD + summary + END}]}


def _without_ours(items: list[Json]) -> list[Json]:
    return [item for item in items if not is_ours(item)]


def _instructions(items: list[Json]) -> list[Json]:
    return [item for item in items if item.get("type") == "message" and item.get("role") in ("system", "developer")]


def _latest(items: list[Json], keep: int) -> list[Json]:
    """The user's latest messages, as many as `keep` tokens allow. What an earlier summary said is in the new one."""
    kept: list[Json] = []
    for item in reversed(items):
        if not is_user_message(item) or _is_summary(item):
            continue
        keep -= estimate_item(item)
        if keep < 0:
            break
        kept.append(item)
    return kept[::-1]


def _is_summary(item: Json) -> bool:
    content = item.get("content")
    return bool(content) and isinstance(content, list) and str(content[0].get("text")).startswith(LEAD)


def _is_call(item: Json) -> bool:
    return isinstance(item.get("call_id"), str) and not _is_output(item)


def _is_output(item: Json) -> bool:
    return str(item.get("type")).endswith("_output")


_decode = msgspec.json.Decoder(Compacted).decode
