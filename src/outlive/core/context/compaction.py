"""Compaction: a long context becomes a short one, a summary and the items that stay unchanged, packed into one item.

A compaction item carries everything it stands for, sealed, so it can go to a client and come back to any server that
shares the seal. There are two sorts. One made within a response stands for everything before it. One made by the
compact endpoint is returned together with the user's messages, and stands for the rest.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable

import msgspec

from outlive.core.context.assemble import call_of, is_call, is_output
from outlive.core.context.window import estimate_item, is_given, is_instruction, is_user_message, tail_of
from outlive.core.errors import BrokenSeal, UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json, add_item, end_item
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.tools import TOOL_BRINGERS

# The beginning of this server's `encrypted_content`, by which it is known without being opened.
PREFIX = "outlive.1."

# Tokens of the user's messages that stay unchanged, and of a summary.
KEPT_TOKENS = 8_000
SUMMARY_TOKENS = 4_000

# Bytes that an item may stand for: little text can be inflated to much.
MAX_CONTENT = 64 * 1024 * 1024

PROMPT = """\
The conversation so far is about to be replaced by a summary of it. Write this summary now.

Whoever goes on with the conversation will know of it only what you write, besides the user's own latest messages. So \
say what the user wants, with every requirement, preference and decision; what was done and found out, with the exact \
names, numbers, paths, identifiers and quotations that may be needed again; what tools returned, as far as it still \
matters; what is unfinished, promised or open, and what comes next. Leave out what is settled and will not matter \
again.

Write plain text in the language of the conversation, without a preface. Do not answer the user, and call no tools."""

# Marks the beginning and the end of a summary: for some servers, neighbours of one role become one message.
LEAD = """\
(The earlier part of this conversation was replaced by a summary of it. What the user said before this line has been \
answered, unless the summary says otherwise. The summary:)

"""
END = "\n\n(End of the summary. The conversation goes on here.)"


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content that a compaction item stands for."""

    summary: str
    before: list[Json] = []  # messages that stay, and stand before the summary
    after: list[Json] = []  # items that no model had answered yet, and stand after it
    beside: bool = False  # the user's messages stand beside the item, and stay where they are


Read = Callable[[Json], Compacted | None]


def is_own(item: Json) -> bool:
    return item.get("type") == "compaction" and str(item.get("encrypted_content")).startswith(PREFIX)


def pack(compacted: Compacted, seal: Callable[[bytes], bytes]) -> str:
    """Return the `encrypted_content` of an item. Raises UpstreamFault for a content that `unpack` would not read."""
    plain = msgspec.json.encode(compacted)
    if len(plain) > MAX_CONTENT:
        raise UpstreamFault("What must stay of the context is too long to be compacted.", retryable=False)
    return PREFIX + b64encode(seal(zlib.compress(plain))).decode()


def unpack(item: Json, unseal: Callable[[bytes], bytes]) -> Compacted:
    """Read an item. Raises BrokenSeal for one that this server has not sealed, or not for this owner."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(open_seal(item, unseal), MAX_CONTENT)
    if not inflater.eof:
        raise BrokenSeal
    return _decode(plain)


def open_seal(item: Json, unseal: Callable[[bytes], bytes]) -> bytes:
    """Return the compressed content of an item: an intact seal is enough to know that `unpack` can read it, and costs
    no more than the item's own length. Raises BrokenSeal."""
    try:
        return unseal(b64decode(str(item["encrypted_content"]).removeprefix(PREFIX), validate=True))
    except ValueError as error:
        raise BrokenSeal from error


def open_context(items: list[Json], read: Read) -> list[Json]:
    """Replace the newest compaction item, and everything it stands for, by its content. An item that cannot be read is
    left out."""
    for position in range(len(items) - 1, -1, -1):
        if is_own(items[position]) and (compacted := read(items[position])) is not None:
            beside = [item for item in items[:position] if is_user_message(item)] if compacted.beside else []
            unfolded = [*beside, *compacted.before, _make_message(LEAD + compacted.summary + END), *compacted.after]
            return unfolded + _without_own(items[position + 1 :])
    return _without_own(items)


def split(items: list[Json], keep: int) -> tuple[list[Json], Compacted] | None:
    """Split a context that a model is about to answer: the items to summarise, and those that stay unchanged. None when
    nothing was added since the last summary."""
    tail = tail_of(items)
    if all(_is_summary(item) or is_given(item) for item in items[:tail]):
        return None
    return items[:tail], Compacted("", _find_kept(items[:tail], keep), items[tail:])


def split_all(items: list[Json], keep: int) -> tuple[list[Json], Compacted]:
    """Split a context that is compacted as it is, with nothing to be answered now. A call whose output is still to come
    stays."""
    answered = {call_of(item) for item in items if is_output(item)}
    summarised: list[Json] = []
    waiting: list[Json] = []
    for item in items:
        (waiting if is_call(item) and item["call_id"] not in answered else summarised).append(item)
    return summarised, Compacted("", _find_kept(summarised, keep), waiting)


def split_beside(items: list[Json]) -> tuple[list[Json], list[Json], Compacted]:
    """Split a context for the compact endpoint, which returns all of the user's messages: these, in the middle."""
    summarised, compacted = split_all(items, 0)
    messages = [item for item in summarised if is_user_message(item) and not _is_summary(item)]
    return summarised, messages, msgspec.structs.replace(compacted, beside=True)


def ask_summary(request: CreateResponse, items: list[Json]) -> CreateResponse:
    """Make the request for a summary: as similar as possible to the one that it is for, so that the prompt cache of
    the model's server can be used."""
    return msgspec.structs.replace(
        request,
        input=[],
        tool_choice="none" if request.tools or any(item.get("type") in TOOL_BRINGERS for item in items) else "auto",
        max_output_tokens=max(SUMMARY_TOKENS, request.max_output_tokens or 0),
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
    return _make_message(PROMPT)


def _make_message(text: str) -> Json:
    # The role is `user`: many models' servers take no other message in the middle of a conversation.
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def show(item: Json, output_index: int) -> list[AnyDraft]:
    """Return the events of the item. Its content comes only at the end."""
    place: Json = {"item_id": item["id"], "output_index": output_index}
    return [
        add_item(output_index, {**item, "encrypted_content": ""}),
        Draft("response.compaction.compacting", place),
        end_item(output_index, item),
    ]


def _without_own(items: list[Json]) -> list[Json]:
    return [item for item in items if not is_own(item)]


def _find_kept(items: list[Json], keep: int) -> list[Json]:
    """Return the instructions, and the user's latest messages, as many as `keep` tokens allow. An earlier summary is
    part of the new one."""
    kept: list[Json] = []
    for item in reversed(items):
        if not is_user_message(item) or _is_summary(item):
            continue
        keep -= estimate_item(item)
        if keep < 0:
            break
        kept.append(item)
    return [item for item in items if is_instruction(item)] + kept[::-1]


def _is_summary(item: Json) -> bool:
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and str(first.get("text")).startswith(LEAD)


_decode = msgspec.json.Decoder(Compacted).decode
