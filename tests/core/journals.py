"""Journals as running responses write them: generated upstream streams, translated, numbered and framed."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from openai.types.responses import Response
from pydantic import TypeAdapter

from outlive.core.endings import Outcome, end, terminal
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json, number
from outlive.core.fold import Fold
from outlive.core.requests.create import CreateResponse, header
from outlive.dialects.chat.translator import ChatTranslator
from outlive.ports.backend import ModelCall
from outlive.testing import call_chunk, finish_chunk, reasoning_chunk, refusal_chunk, text_chunk, usage_chunk
from tests.dialects.playback import official
from tests.support.scripting import CountingIds

SHELL: Json = {"type": "custom", "name": "shell"}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
REQUEST = CreateResponse(model="m", input=[], tools=[SHELL, WEATHER])

# Texts that frames must survive: line ends of every kind, NULs, quotes, and characters outside the first plane.
NASTY = (
    "\n\n",
    "\r\n",
    "\n\ndata: x\n\n",
    "\x00",
    "\u2028",
    "\\n",
    '"',
    "\N{PILE OF POO}",
    "\N{FAMILY}",
    "\uffff",
    "é",
)
texts = st.one_of(st.sampled_from(NASTY), st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))

_calls = st.builds(
    lambda index, name, arguments: [call_chunk(index, f"call_{index}", name, arguments)],
    st.integers(0, 2),
    st.sampled_from(["weather", "shell"]),
    st.sampled_from(["", "{", "{}", '{"input":"ls"}', '{"input"']),
)
_pieces = st.one_of(
    texts.map(lambda text: [text_chunk(text)]),
    texts.map(lambda text: [reasoning_chunk(text)]),
    texts.map(lambda text: [refusal_chunk(text)]),
    _calls,
)
chunks = st.lists(_pieces, max_size=12).map(lambda pieces: [chunk for piece in pieces for chunk in piece])


def opening(status: str = "in_progress", background: bool = False, request: CreateResponse = REQUEST) -> list[AnyDraft]:
    """Return the events that a response is accepted with."""
    response = header(request, "resp_1", 1, "m", status)
    drafts: list[AnyDraft] = [Draft("response.created", {"response": response})]
    if background:
        drafts.append(Draft("response.queued", {"response": response}))
    if status == "in_progress":
        drafts.append(Draft("response.in_progress", {"response": response}))
    return drafts


def run(upstream: list[bytes], finish: str | None = "stop") -> list[AnyDraft]:
    """Return all drafts before the terminal event; with no finish, up to the point where the upstream broke off."""
    translator = ChatTranslator(ModelCall("m", REQUEST, []), CountingIds())
    drafts = opening()
    for chunk in upstream:
        drafts += translator.feed(chunk)
    if finish is not None:
        with suppress(UpstreamFault):
            for chunk in (finish_chunk(finish), usage_chunk()):
                drafts += translator.feed(chunk)
            drafts += translator.end()[0]
    return drafts


runs = st.builds(run, chunks, st.sampled_from(["stop", "length", "tool_calls", None]))


def fold_of(drafts: list[AnyDraft]) -> Fold:
    fold = Fold()
    fold.apply(drafts)
    return fold


def frames_of(drafts: list[AnyDraft], after: int = -1) -> bytes:
    return b"".join(number(drafts, after))


def end_with(fold: Fold, closing: list[AnyDraft], outcome: Outcome) -> list[AnyDraft]:
    """Return the last events of a response, as a runner writes them."""
    after = copy.deepcopy(fold)
    after.apply(closing)
    return [*closing, terminal(end(fold.header, after.output, outcome))]


def state_of(fold: Fold) -> dict[str, Any]:
    """Return the whole visible state of a fold."""
    return {
        "response": fold.response(),
        "output": fold.output,
        "open": list(fold.open_items()),
        "status": fold.status,
        "last": fold.last,
        "deltas": fold.deltas,
        "visible": fold.visible,
        "ended": fold.ended,
    }


@cache
def official_response() -> TypeAdapter[Response]:
    return TypeAdapter(Response)


def assert_official(response: Json) -> None:
    """Check a Response with the official types. (The reason `interrupted` is the one exception, D9.)"""
    details = response.get("incomplete_details")
    if details is not None and details["reason"] == "interrupted":
        response = {**response, "incomplete_details": {"reason": "max_output_tokens"}}
    official_response().validate_json(msgspec.json.encode(response))


def assert_official_event(event: Json) -> None:
    if event["type"].startswith("outlive:"):
        return  # our own, which clients may ignore
    if event["type"] == "response.cancelled":
        assert_official(event["response"])
        return
    if "response" in event:
        assert_official(event["response"])
    else:
        official().validate_python(event)
