"""Probe an upstream: put a few tiny questions to it through its dialect's backend, and report its quirks."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from outlive.cli.terminal import Section
from outlive.clock import RandomIds
from outlive.config.network import hide_password, is_loopback
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Delta, Draft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.build import make_backend
from outlive.dialects.transport.endpoint import MOST_LISTED, Endpoint, read_error
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import Backend, ContinuationMode, ModelCall, Upstream

MOST_TOKENS = 16
# A longer answer ignored the limit of MOST_TOKENS; reading on would only cost.
_TOO_MANY_PIECES, _TOO_MANY_CHARACTERS, _TOO_MANY_TOKENS = 40, 200, MOST_TOKENS + 8

_WORD = "tangerine"
_HINT = f"The secret word is {_WORD}. When asked for it, reply with that one word."
_ASK = "What is the secret word?"
_COUNT = "Count from 1 to 100 in digits, separated by spaces, and say nothing else."
# Only an answer that is really continued begins with the comma; a new one would begin with a word.
_COUNT_WORDS = "Count from one to ten in English words, separated by commas."
_CUT, _REST = "one, two, three, four", ","

# Models in lists that do not chat; the first of the others is asked.
_NO_CHAT = re.compile(
    r"embed|whisper|tts|dall-e|image|audio|realtime|moderation|transcribe|rerank|sora|imagen|veo|babbage|davinci"
)


def probe(upstream: Upstream, model: str | None, timeout: float) -> Section:
    """Put all questions to one upstream. The section never contains a secret."""
    section = Section(f"Upstream {upstream.name} ({upstream.url})", table=f"upstreams.{upstream.name}")
    parts = urlsplit(upstream.url)
    if upstream.key and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        section.add("warn", "transport", "The key is sent unencrypted; use https unless the network is your own.")
    if upstream.proxy is not None:
        section.add("ok", "proxy", f"{hide_password(upstream.proxy)}, as the environment says")
    asyncio.run(Prober(replace(upstream, silence_seconds=timeout), section).put_all(model))
    return section


class ProbeAnswer(msgspec.Struct):
    """The answer to one question."""

    text: str = ""
    pieces: int = 0
    characters: int = 0  # of text and reasoning
    usage: Json | None = None
    fault: UpstreamFault | None = None

    async def read(self, backend: Backend, stream: AsyncGenerator[list[bytes], None], call: ModelCall) -> None:
        """Read a stream to its end, or until it is longer than it may be. Raise UpstreamFault."""
        translator = backend.translator(call)
        resumed = call.resume.text if call.resume is not None else ""
        async with aclosing(stream):
            async for chunks in stream:
                for chunk in chunks:
                    self._add(translator.feed(chunk), resumed)
                if self.is_too_long:
                    return
        drafts, ending = translator.end()
        self._add(drafts, resumed)
        self.usage = ending.usage

    def _add(self, drafts: list[AnyDraft], resumed: str) -> None:
        for draft in drafts:
            if draft.type.endswith(".delta"):
                delta = draft.text if isinstance(draft, Delta) else str(draft.fields.get("delta"))
                self.pieces += 1
                self.characters += len(delta)
                self.text += delta if draft.type == "response.output_text.delta" else ""
            elif isinstance(draft, Draft) and draft.type == "response.output_text.done" and not self.text:
                self.text = str(draft.fields["text"]).removeprefix(resumed)

    @property
    def is_too_long(self) -> bool:
        """Return True if the limit was ignored."""
        tokens = (self.usage or {}).get("output_tokens") or 0
        too_many = self.pieces > _TOO_MANY_PIECES or self.characters > _TOO_MANY_CHARACTERS
        return too_many or tokens > _TOO_MANY_TOKENS


class Prober:
    """Puts questions to one upstream, each to a backend of its own, whose upstream may differ from the settings."""

    def __init__(self, upstream: Upstream, section: Section) -> None:
        self.upstream = upstream
        self.expected = _EXPECTED[upstream.dialect]
        self.section = section
        self.pool = HttpPool()
        self.stack = AsyncExitStack()  # closes the backends, then the pool
        self.stack.callback(self.pool.close)
        self.model = ""
        # The upstream as it is asked: without `stream_options`, which only one question is about.
        self.asked = replace(upstream, stream_options=False)

    async def put_all(self, wanted: str | None) -> None:
        async with self.stack:
            try:
                self.model = await _find_model(self, wanted)
                if self.model and await _check_answer(self):
                    for question in self.expected.questions:
                        await question(self)
            except UpstreamFault as fault:
                self.section.add("fail", "connection", fault.message)

    async def ask(
        self, *items: Json, resume: OpenText | None = None, reasoning: Json | None = None, **fields: Any
    ) -> ProbeAnswer:
        """Put one question, with these fields of the upstream replaced."""
        call, answer = self.make_call(*items, resume=resume, reasoning=reasoning), ProbeAnswer()
        backend = self.open(**fields)
        try:
            await answer.read(backend, backend.stream(call), call)
        except UpstreamFault as fault:
            answer.fault = fault
        return answer

    def make_call(self, *items: Json, resume: OpenText | None = None, reasoning: Json | None = None) -> ModelCall:
        given = list(items)
        request = CreateResponse(model=self.model, input=given, max_output_tokens=MOST_TOKENS, reasoning=reasoning)
        return ModelCall(self.model, request, given, resume, response_id=RandomIds().new("resp"))

    def open(self, **fields: Any) -> Backend:
        backend = make_backend(replace(self.asked, **fields), self.pool, RandomIds())
        self.stack.push_async_callback(backend.close)
        return backend

    def report(self, key: str, best: object, detail: str, name: str = "") -> None:
        """Report a setting; if it has not the best value, with the advice to set that."""
        is_best = getattr(self.upstream, key) == best
        self.section.add("ok" if is_best else "warn", name or key, detail, **{} if is_best else {key: best})


async def _find_model(prober: Prober, wanted: str | None) -> str:
    """Return the model to ask: the one given, an alias' target, or the first listed that may chat; "" for none."""
    upstream, section = prober.upstream, prober.section
    listed = await _list_models(prober, upstream.url)
    if isinstance(listed, UpstreamFault):
        if listed.status in (401, 403):
            section.add("fail", "key", f"It refuses the key. {listed.message}")
            return ""
        longer = f"{upstream.url}/v1"  # a base URL without /v1 is the commonest mistake
        if not upstream.url.endswith("/v1") and isinstance(await _list_models(prober, longer), list):
            section.add("fail", "url", f"There is nothing at {upstream.url}, but there is at {longer}.", url=longer)
            return ""
        section.add("warn", "models", f"It lists none. {listed.message}")
        listed = []
    else:
        section.add("ok" if listed else "warn", "models", f"{len(listed)} listed")
    names = [name for name in listed if not _NO_CHAT.search(name.lower())]
    chosen = wanted or next(iter([*upstream.models.values(), *names]), "")
    if not chosen:
        section.add("skip", prober.expected.answer, "There is no model to ask; give --model NAME.")
    return chosen


async def _list_models(prober: Prober, url: str) -> list[str] | UpstreamFault:
    """Return the listed names, or the refusal, which the backend's own list would leave out."""
    endpoint = prober.open(url=url)
    assert isinstance(endpoint, Endpoint)
    answer = await endpoint.request("GET", endpoint.url("models", **endpoint.list_query), any_status=True)
    try:
        if answer.status != 200:
            return await read_error(answer, endpoint.redactor)
        value: Any = msgspec.json.decode(await answer.read_whole(MOST_LISTED))
    except msgspec.DecodeError:
        value = None
    except OSError as error:
        raise endpoint.broken(error) from error
    finally:
        answer.leave()
    data = value.get("data") if isinstance(value, dict) else value
    if not isinstance(data, list):
        return UpstreamFault("It answers, but not with a list of models.")
    return [model["id"] for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]


# -- questions, in the order in which they build on each other


async def _check_answer(prober: Prober) -> bool:
    """Find the name of the token limit that is honoured. Return False if there is no answer under any."""
    configured = prober.upstream.max_tokens_field
    answers: list[ProbeAnswer] = []
    for field in sorted(prober.expected.limits, key=lambda field: field != configured) or [configured]:
        answer = await prober.ask(_say("user", _COUNT), max_tokens_field=field)
        answers.append(answer)
        if answer.fault is None and not answer.is_too_long:
            prober.asked = replace(prober.asked, max_tokens_field=field)
            honours = f", and honours {field}" if prober.expected.limits else ""
            prober.section.add("ok", prober.expected.answer, f"{prober.model} answers{honours}")
            if field != configured:
                fault = "refuses" if answers[0].fault else "ignores"
                prober.report("max_tokens_field", field, f"It {fault} {configured}.")
            return True
    faults = [answer.fault for answer in answers if answer.fault]
    if len(faults) < len(answers):
        detail = "It honours no limit: max_output_tokens will have no effect."
        prober.section.add("warn", "max_tokens_field", detail)
        return True
    prober.section.add("fail", prober.expected.answer, f"{prober.model} does not answer. {faults[0].message}")
    if prober.upstream.dialect == "responses" and faults[0].status in (404, 405):
        prober.section.set["dialect"] = "chat"
    return False


async def _ask_developer(prober: Prober) -> None:
    """Find out if the role `developer` is refused, or accepted and then ignored."""
    items = [_say("developer", _HINT), _say("user", _ASK)]
    answer = await prober.ask(*items, developer_role=True)
    heard = _WORD in answer.text.lower()
    fault = "" if answer.fault is None else f"refused. {answer.fault.message}"
    if not fault and not heard:
        # A weak model, or one that only reasoned, may not answer in any role; then nothing is known.
        system = await prober.ask(*items, developer_role=False)
        fault = "accepted, but ignored." if _WORD in system.text.lower() else ""
    used = "" if prober.upstream.developer_role else "It is not used. "
    detail = f"{used}It is {fault}" if fault else "understood" if heard else "accepted"
    prober.report("developer_role", prober.upstream.developer_role and not fault, detail, "developer role")


async def _ask_usage(prober: Prober) -> None:
    answer = await prober.ask(_say("user", _ASK), stream_options=True)
    if answer.fault is None and answer.usage is None:
        detail = "They are accepted, but no usage is sent: tokens are not counted."
        prober.section.add("warn", "stream_options", detail)
        return
    detail = "Usage is sent." if answer.fault is None else f"It refuses them. {answer.fault.message}"
    prober.report("stream_options", answer.fault is None, detail)


async def _ask_continuation(prober: Prober) -> None:
    """Find the mode, if any, in which an interrupted answer is continued."""
    works: ContinuationMode = "none"
    for mode in sorted(prober.expected.continuations, key=lambda mode: mode != prober.upstream.continuation):
        resume = OpenText("msg_1", 0, 0, _CUT, 0)
        answer = await prober.ask(_say("user", _COUNT_WORDS), resume=resume, continuation=mode)
        if answer.fault is None and answer.text.startswith(_REST):
            works = mode
            break
    detail = "cannot be continued." if works == "none" else f"can be continued ({works})."
    prober.report("continuation", works, f"Interrupted answers {detail}")


async def _ask_responses(prober: Prober) -> None:
    """Find out if a chat upstream speaks Responses too; that it does not is no finding."""
    if (await prober.ask(_say("user", _ASK), dialect="responses")).fault is None:
        detail = 'It speaks the Responses API too: dialect = "responses" would use its own tools and reasoning.'
        prober.section.add("ok", "responses", detail)


async def _ask_reasoning(prober: Prober) -> None:
    """Find out if reasoning in plain text, as open models have it, may be sent back."""
    if prober.upstream.reasoning_input != "any":
        prober.section.add("ok", "reasoning", f"sent back only where it is {prober.upstream.reasoning_input}")
        return
    text = [{"type": "reasoning_text", "text": "The user greets me."}]
    thought: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "content": text}
    turn = (_say("user", "Hello"), thought, _say("assistant", "Hello!"))
    fault = (await prober.ask(*turn, _say("user", _ASK))).fault
    detail = f"It may not be sent back as text. {fault.message}" if fault else "It may be sent back as text."
    prober.report("reasoning_input", "encrypted" if fault else "any", detail, "reasoning")


async def _ask_thinking(prober: Prober) -> None:
    """Find out if an effort level is understood. A budget, the other way, would cost a thousand tokens to try."""
    if prober.upstream.thinking == "budget":
        prober.section.add("skip", "thinking", "It is set to budget, which costs too much to try.")
        return
    fault = (await prober.ask(_say("user", _ASK), reasoning={"effort": "low"})).fault
    detail = f"It does not understand reasoning.effort. {fault.message}" if fault else "reasoning.effort is understood."
    prober.report("thinking", "budget" if fault else prober.upstream.thinking, detail)


async def _ask_count(prober: Prober) -> None:
    counted = await prober.open().count(prober.make_call(_say("user", _ASK)))
    detail = "It counts tokens." if counted else "It does not count tokens: they are estimated."
    prober.section.add("ok" if counted else "warn", prober.expected.count, detail)


async def _ask_reattach(prober: Prober) -> None:
    """Submit a background run, disconnect, and follow it again. The upstream's copy of it is deleted."""
    backend = prober.open()
    if (runs := backend.background_runs) is None:
        return
    call, run_id = prober.make_call(_say("user", _ASK)), None
    try:
        async with aclosing(runs.submit(call)) as stream:
            async for chunks in stream:
                if (run_id := runs.read_id(chunks)) is not None:
                    break
        if run_id is None:
            raise UpstreamFault("It names no run.")
        await ProbeAnswer().read(backend, runs.follow(run_id), call)
        prober.section.add("ok", "reattach", "A run was followed again after a disconnect.")
    except UpstreamFault as fault:
        detail = f"A run cannot be followed again. {fault.message}"
        prober.section.add("fail", "reattach", detail, reattach=False)
    if run_id is not None:
        runs.dismiss(run_id, running=False)


def _say(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "status": "completed", "content": [{"type": kind, "text": text}]}


class Expectations(msgspec.Struct, frozen=True):
    """The questions to upstreams of one dialect, and the names of their findings."""

    answer: str
    questions: tuple[Callable[[Prober], Awaitable[None]], ...]
    limits: tuple[str, ...] = ()  # names that the token limit may have
    continuations: tuple[ContinuationMode, ...] = ("prefill",)
    count: str = ""


_EXPECTED = {
    "chat": Expectations(
        "chat",
        (_ask_developer, _ask_usage, _ask_continuation, _ask_responses),
        limits=("max_completion_tokens", "max_tokens"),
        continuations=("prefill", "continue_final_message", "prefix"),
    ),
    "responses": Expectations(
        "responses",
        (_ask_developer, _ask_reasoning, _ask_continuation, _ask_count, _ask_reattach),
        count="input_tokens",
    ),
    "anthropic": Expectations("messages", (_ask_thinking, _ask_continuation, _ask_count), count="count_tokens"),
}
