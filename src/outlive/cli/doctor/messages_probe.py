"""Finds out what an upstream can do that speaks Anthropic's Messages API: it is asked as the server would ask it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec

from outlive.cli.doctor.findings import Section
from outlive.clock import RandomIds
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.backend import AnthropicBackend
from outlive.dialects.transport.http1 import Pool
from outlive.ports.backend import ModelCall, Upstream

MOST_TOKENS = 16

# Only an answer that really goes on begins with the comma; a new one would begin with a word.
_QUESTION = "Count from one to ten in English words, separated by commas."
_CUT, _REST = "one, two, three, four", ","


def examine(upstream: Upstream, model: str | None, timeout: float, section: Section) -> None:
    """Ask everything. Raises UpstreamFault when there is nobody to ask."""
    asyncio.run(_examine(msgspec.structs.replace(upstream, silence_seconds=timeout), model, section))


async def _examine(upstream: Upstream, model: str | None, section: Section) -> None:
    pool = Pool()
    backend = AnthropicBackend(upstream, pool, RandomIds())
    try:
        model = await _find_model(backend, upstream, model, section)
        if model is not None and await _asks(backend, model, section):
            await _ask_thinking(backend, upstream, model, section)
            await _ask_continuation(backend, upstream, model, section)
            await _ask_count(backend, model, section)
    finally:
        await backend.close()
        pool.close()


async def _find_model(
    backend: AnthropicBackend, upstream: Upstream, wanted: str | None, section: Section
) -> str | None:
    listed = [str(model["id"]) for model in await backend.models() if model["id"] not in upstream.models]
    if listed:
        section.add("ok", "models", f"{len(listed)} listed")
    else:
        section.add("warn", "models", "It lists none.")
    chosen = wanted or next(iter([*upstream.models.values(), *listed]), None)
    if chosen is None:
        section.add("skip", "messages", "There is no model to ask; give --model NAME.")
    return chosen


async def _asks(backend: AnthropicBackend, model: str, section: Section) -> bool:
    try:
        await _ask(backend, _make(model))
    except UpstreamFault as fault:
        section.add("fail", "messages", f"{model} does not answer: {fault.message}")
        return False
    section.add("ok", "messages", f"{model} answers")
    return True


async def _ask_thinking(backend: AnthropicBackend, upstream: Upstream, model: str, section: Section) -> None:
    """Whether it can be told in a word how much to think. The other way would cost a thousand tokens to try."""
    if upstream.thinking == "budget":
        section.add("skip", "thinking", "It is set to budget, which costs too much to try.")
        return
    try:
        await _ask(backend, _make(model, reasoning={"effort": "low"}))
        section.add("ok", "thinking", "reasoning.effort is understood.")
    except UpstreamFault as fault:
        section.add("warn", "thinking", f"It does not understand reasoning.effort: {fault.message}")
        section.set["thinking"] = "budget"


async def _ask_continuation(backend: AnthropicBackend, upstream: Upstream, model: str, section: Section) -> None:
    try:
        text = await _ask(backend, _make(model, OpenText("msg_1", 0, 0, _CUT, 0)))
    except UpstreamFault:
        text = ""
    works = "prefill" if text.startswith(_REST) else "none"
    if works == upstream.continuation:
        detail = "Interrupted answers cannot go on." if works == "none" else "Interrupted answers go on (prefill)."
        section.add("ok", "continuation", detail)
        return
    found = "no answer went on where it was cut" if works == "none" else "prefill works"
    section.add("warn", "continuation", f"It is set to {upstream.continuation}, but {found}.")
    section.set["continuation"] = works


async def _ask_count(backend: AnthropicBackend, model: str, section: Section) -> None:
    counted = await backend.count(_make(model))
    detail = "It counts tokens." if counted else "It does not count tokens: they are estimated."
    section.add("ok" if counted else "warn", "count_tokens", detail)


def _make(model: str, resume: OpenText | None = None, reasoning: Json | None = None) -> ModelCall:
    item: Json = {"type": "message", "role": "user", "content": _QUESTION}
    request = CreateResponse(model=model, input=[item], max_output_tokens=MOST_TOKENS, reasoning=reasoning)
    return ModelCall(model, request, [item], resume)


async def _ask(backend: AnthropicBackend, call: ModelCall) -> str:
    """What the model says, without what it was to go on from."""
    translator = backend.translator(call)
    drafts: list[AnyDraft] = []
    async with aclosing(backend.stream(call)) as stream:
        async for chunks in stream:
            for chunk in chunks:
                drafts += translator.feed(chunk)
    drafts += translator.end()[0]
    done = [draft for draft in drafts if isinstance(draft, Draft) and draft.type == "response.output_text.done"]
    whole = "".join(str(draft.fields["text"]) for draft in done)
    return whole.removeprefix(call.resume.text) if call.resume is not None else whole
