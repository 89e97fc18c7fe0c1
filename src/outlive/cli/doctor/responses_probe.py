"""Finds out what an upstream can do that itself speaks the Responses API: it is asked as the server would ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from outlive.cli.doctor.findings import Section
from outlive.clock import RandomIds
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.responses.backend import ResponsesBackend
from outlive.dialects.transport.http1 import Pool
from outlive.ports.backend import BackgroundRuns, ModelCall, Upstream

MOST_TOKENS = 16

# Only an answer that really goes on begins with the comma; a new one would begin with a word.
_QUESTION = "Count from one to ten in English words, separated by commas."
_CUT, _REST = "one, two, three, four", ","


def examine(upstream: Upstream, model: str | None, timeout: float, section: Section) -> None:
    """Ask everything. Raises UpstreamFault when there is nobody to ask."""
    asyncio.run(_examine(msgspec.structs.replace(upstream, silence_seconds=timeout), model, section))


async def _examine(upstream: Upstream, model: str | None, section: Section) -> None:
    pool = Pool()
    backend = ResponsesBackend(upstream, pool, RandomIds())
    try:
        examination = _Examination(backend, upstream, section)
        model = await examination.find_model(model)
        if model is not None and await examination.answers(model):
            await examination.ask_everything(model)
    finally:
        await backend.close()
        pool.close()


class _Examination:
    """The questions, in the order in which they build on each other."""

    def __init__(self, backend: ResponsesBackend, upstream: Upstream, section: Section) -> None:
        self._backend = backend
        self._upstream = upstream
        self._section = section

    async def find_model(self, wanted: str | None) -> str | None:
        listed = [
            str(model["id"]) for model in await self._backend.models() if model["id"] not in self._upstream.models
        ]
        if listed:
            self._section.add("ok", "models", f"{len(listed)} listed")
        else:
            self._section.add("warn", "models", "It lists none.")
        chosen = wanted or next(iter([*self._upstream.models.values(), *listed]), None)
        if chosen is None:
            self._section.add("skip", "responses", "There is no model to ask; give --model NAME.")
        return chosen

    async def answers(self, model: str) -> bool:
        try:
            await self._ask(_make(model))
        except UpstreamFault as fault:
            self._section.add("fail", "responses", f"{model} does not answer: {fault.message}")
            if fault.status in (404, 405):
                self._section.set["dialect"] = "chat"
            return False
        self._section.add("ok", "responses", f"{model} answers")
        return True

    async def ask_everything(self, model: str) -> None:
        await self._ask_developer(model)
        await self._ask_reasoning(model)
        await self._ask_continuation(model)
        counted = await self._backend.count(_make(model))
        detail = "It counts tokens." if counted else "It does not count tokens: they are estimated."
        self._section.add("ok" if counted else "warn", "input_tokens", detail)
        if self._backend.background_runs is not None:
            await self._ask_reattach(self._backend.background_runs, model)

    async def _ask_developer(self, model: str) -> None:
        if not self._upstream.developer_role:
            self._section.add("ok", "developer role", "not used")
            return
        try:
            await self._ask(_make(model, before=[_say("developer", "Be brief.")]))
            self._section.add("ok", "developer role", "accepted")
        except UpstreamFault as fault:
            self._section.add("warn", "developer role", f"It is refused: {fault.message}")
            self._section.set["developer_role"] = False

    async def _ask_reasoning(self, model: str) -> None:
        """Whether reasoning in plain text, as open models have it, may be sent back."""
        if self._upstream.reasoning_input != "any":
            self._section.add("ok", "reasoning", f"sent back only where it is {self._upstream.reasoning_input}")
            return
        text = [{"type": "reasoning_text", "text": "The user greets me."}]
        thought: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "content": text}
        try:
            await self._ask(_make(model, before=[_say("user", "Hello"), thought, _say("assistant", "Hello!")]))
            self._section.add("ok", "reasoning", "It may be sent back in plain text.")
        except UpstreamFault as fault:
            self._section.add("warn", "reasoning", f"It may not be sent back in plain text: {fault.message}")
            self._section.set["reasoning_input"] = "encrypted"

    async def _ask_continuation(self, model: str) -> None:
        try:
            text = await self._ask(_make(model, OpenText("msg_1", 0, 0, _CUT, 0)))
        except UpstreamFault:
            text = ""
        works = "prefill" if text.startswith(_REST) else "none"
        if works == self._upstream.continuation:
            detail = "Interrupted answers cannot go on." if works == "none" else "Interrupted answers go on (prefill)."
            self._section.add("ok", "continuation", detail)
            return
        found = "no answer went on where it was cut" if works == "none" else "prefill works"
        self._section.add("warn", "continuation", f"It is set to {self._upstream.continuation}, but {found}.")
        self._section.set["continuation"] = works

    async def _ask_reattach(self, lasting: BackgroundRuns, model: str) -> None:
        """Submit a run, leave it, and take it up again. What is kept of it for that is deleted."""
        run_id: str | None = None
        call = msgspec.structs.replace(_make(model), response_id=RandomIds().new("resp"))
        try:
            async with aclosing(lasting.submit(call)) as stream:
                async for chunks in stream:
                    if (run_id := lasting.read_id(chunks)) is not None:
                        break
            if run_id is None:
                raise UpstreamFault("It names no run.")
            await self._read(lasting.follow(run_id), call)
            self._section.add("ok", "reattach", "A run that was left was taken up again.")
        except UpstreamFault as fault:
            self._section.add("fail", "reattach", f"A run cannot be taken up again: {fault.message}")
            self._section.set["reattach"] = False
        if run_id is not None:
            lasting.dismiss(run_id, running=False)

    async def _ask(self, call: ModelCall) -> str:
        return await self._read(self._backend.stream(call), call)

    async def _read(self, stream: AsyncGenerator[list[bytes], None], call: ModelCall) -> str:
        """What the model says, without what it was to go on from."""
        translator = self._backend.translator(call)
        drafts: list[AnyDraft] = []
        async with aclosing(stream):
            async for chunks in stream:
                for chunk in chunks:
                    drafts += translator.feed(chunk)
        drafts += translator.end()[0]
        done = [draft for draft in drafts if isinstance(draft, Draft) and draft.type == "response.output_text.done"]
        whole = "".join(str(draft.fields["text"]) for draft in done)
        return whole.removeprefix(call.resume.text) if call.resume is not None else whole


def _say(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "status": "completed", "content": [{"type": kind, "text": text}]}


def _make(model: str, resume: OpenText | None = None, before: list[Json] | None = None) -> ModelCall:
    items = [*(before or []), _say("user", _QUESTION)]
    request = CreateResponse(model=model, input=items, max_output_tokens=MOST_TOKENS)
    return ModelCall(model, request, items, resume)
