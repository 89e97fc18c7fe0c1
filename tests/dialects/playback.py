"""Plays chunks through a translator, as a runner would, and checks the events in every way there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from outlive.core.events import AnyDraft, Draft, Json, number, read_frame
from outlive.core.ids import IdSource
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse, header
from outlive.dialects.chat.translator import ChatTranslator
from outlive.ports.backend import Ending, ModelCall, Translator
from tests.support import nesting
from tests.support.scripting import CountingIds

Make = Callable[[ModelCall, IdSource], Translator]


def make_call(resume: OpenText | None = None, items: list[Json] | None = None, **fields: Any) -> ModelCall:
    return ModelCall("m", CreateResponse(model="m", input=[], **fields), items or [], resume)


def translate(
    chunks: Iterable[bytes], call: ModelCall | None = None, make: Make = ChatTranslator
) -> tuple[list[AnyDraft], Ending]:
    translator = make(call or make_call(), CountingIds())
    drafts = [draft for chunk in chunks for draft in translator.feed(chunk)]
    closing, ending = translator.end()
    return drafts + closing, ending


def wrap(drafts: list[AnyDraft], ending: Ending, call: ModelCall) -> list[Json]:
    """Return the whole stream of a response, as its readers get it."""
    head = header(call.request, "resp_1", 1, "m", "in_progress")
    items = [
        draft.fields["item"] for draft in drafts if draft.type == "response.output_item.done" and type(draft) is Draft
    ]
    items_by_index = sorted(
        (draft.fields["output_index"], n)
        for n, draft in enumerate(
            draft for draft in drafts if type(draft) is Draft and draft.type == "response.output_item.done"
        )
    )
    final = {**head, "status": ending.status, "output": [items[n] for _, n in items_by_index], "usage": ending.usage}
    if ending.reason:
        final["incomplete_details"] = {"reason": ending.reason}
    opening = [Draft("response.created", {"response": head}), Draft("response.in_progress", {"response": head})]
    terminal = Draft(f"response.{ending.status}", {"response": final})
    return [read_frame(frame) for frame in number([*opening, *drafts, terminal], -1)]


def play(chunks: Iterable[bytes], call: ModelCall | None = None, make: Make = ChatTranslator) -> list[Json]:
    """Translate, and return the whole stream, checked."""
    call = call or make_call()
    events = wrap(*translate(chunks, call, make), call)
    assert_sound(events)
    return events


def assert_sound(events: list[Json]) -> None:
    nesting.check(events)
    parsed = [official().validate_python(event) for event in events]
    strict: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in parsed:
        strict.handle_event(event)


@cache
def official() -> TypeAdapter[Any]:
    """Return the official types, which validate every event."""
    return TypeAdapter(ResponseStreamEvent)


def output(events: list[Json]) -> list[Json]:
    items: list[Json] = events[-1]["response"]["output"]
    return items


def types(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
