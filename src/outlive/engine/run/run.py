"""One run: ask the model, translate, commit, and always come to an end (D9, D10)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container
from functools import partial
from typing import cast

import msgspec

from outlive import failpoints
from outlive.core import endings, recovery, toolcalls
from outlive.core.context.window import estimate_request
from outlive.core.counts import Counts
from outlive.core.errors import InvalidRequest, StaleFence, StorageUnavailable, UpstreamFault
from outlive.core.events import AnyDraft, Draft
from outlive.core.recovery import Action, Decision, OpenText
from outlive.core.toolcalls import ToolCallBuffer
from outlive.core.usage import NOTHING_USED, add_usage
from outlive.engine.budget import ByteBudget
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import Attempt, LiveResponse, State
from outlive.engine.run.closer import Closer
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.context import OWNER_BYTES, ContextLoader
from outlive.engine.run.fitting import Fitting
from outlive.engine.run.plans import Finish, MakeCall, OpenStream, StepResult
from outlive.engine.run.reattach import Reattach
from outlive.engine.run.tool_loop import ToolLoop
from outlive.ports.backend import Backend, Ending, ModelCall, Route, Translator
from outlive.ports.clock import Clock
from outlive.ports.storage import History
from outlive.ports.toolbox import Tools
from outlive.ports.tracing import Tracer, describe_answer

log = logging.getLogger(__name__)

# D10: times that an upstream is asked again while nothing is visible, and for how many seconds in all.
RETRIES = 3
RETRY_SECONDS = 60.0
# Characters of one response's text: its last events and its final object hold it several times.
MAX_TEXT = 4 * 1024 * 1024

RESTARTED = "The server was interrupted, and this upstream cannot continue an answer in place."
TOO_OFTEN = "The server was interrupted before anything was answered, too often to try again."
MISTAKE = "The server made a mistake while running this response."
TOO_MUCH = "The model's answer is longer than this server takes."
TOO_LONG = "The response ran longer than this server allows."
TOO_LATE = "The response did not end before the deadline that its request set."

# What a run does next that goes on; the other two actions end it.
_GOES_ON = frozenset({Action.RESTART, Action.REATTACH, Action.NEXT_STEP, Action.CONTINUE})


class RunServices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that runs share."""

    route: Route
    history: History
    clock: Clock
    committer: Committer
    closer: Closer
    compactor: Compactor
    run_seconds: float | None = None  # None: no limit
    tools: Tools | None = None
    counts: Counts = msgspec.field(default_factory=Counts)
    tracer: Tracer = msgspec.field(default_factory=Tracer)
    contexts: ByteBudget = msgspec.field(default_factory=lambda: ByteBudget(OWNER_BYTES))


class Run:
    """One live response being run."""

    def __init__(self, services: RunServices, live: LiveResponse) -> None:
        claim, self._clock = live.claim, services.clock
        self._services, self._live, self._request = services, live, claim.request
        self._context = ContextLoader(claim, services.history, services.compactor, self._clock, services.contexts)
        self._attempts = max(claim.attempts, 1)
        self._asked = 0  # times the model was asked in this step
        self._asked_again = 0  # times it was asked again, in all steps
        self._step_from = -1  # last event before this step, if nothing of the step was visible then
        self._began = self._clock.monotonic()
        self._limit: asyncio.Timeout | None = None
        self._backend: Backend | None = None
        self._model = ""
        self._tools: Tools | None = None  # of the server's own, if it uses them
        self._is_stepwise = False  # True: the answer is made in several steps and can be continued after each
        self._fitting: Fitting | None = None  # None for nearly all requests, which want their context as it is
        self._reattach: Reattach | None = None
        self._tool_loop: ToolLoop | None = None

    async def run(self) -> None:
        """Run to the terminal event, unless another worker has taken the response over."""
        if self._live.tail.lost:
            return
        try:
            deadline, seconds = self._request.deadline, self._services.run_seconds
            if deadline is None and seconds is None:
                await self._run()
            else:
                await self._run_limited(seconds if deadline is None else deadline - self._clock.now())
        except StaleFence:
            pass  # the other worker ends it
        except Exception:
            # A bug must not leave a response without an end. Once an end was sent, the committer sees to it.
            log.exception("running response failed", extra=self._live.describe())
            if self._live.state is State.OPEN:
                with contextlib.suppress(StaleFence):
                    await self._services.closer.fail(self._live, UpstreamFault(MISTAKE, retryable=False))

    async def _run_limited(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds) as self._limit:
                await self._run()
        except TimeoutError:
            self._limit = None
            await self._fail(make_deadline_fault(TOO_LONG if self._request.deadline is None else TOO_LATE))

    async def _run(self) -> None:
        try:
            finish = await self._answer(self._choose_backend())
        except UpstreamFault as fault:
            await self._fail(fault)
        except InvalidRequest as error:
            # The history holds something that this upstream cannot be sent.
            await self._fail(UpstreamFault(error.message, code="invalid_prompt", status=400, retryable=False))
        except StorageUnavailable as error:
            # The history could not be read for minutes. The end is written once the storage is back.
            await self._fail(UpstreamFault(error.message, status=503, retryable=False))
        else:
            if self._limit is not None:
                self._limit.reschedule(None)  # an answer that is complete in time is not too late
            live, ending, attempts = self._live, finish.ending, self._attempts + self._asked_again
            usage = add_usage(live.checkpoint.compaction, ending.usage)
            await self._services.closer.finish(live, finish.drafts, ending, usage, attempts)
        finally:
            self._context.close()
            if (loop := self._tool_loop) is not None:
                self._tool_loop = None
                await loop.close()  # after the end: a slow MCP server must not delay the terminal event

    async def _answer(self, backend: Backend) -> Finish:
        """Make the answer, and return its end. Raises UpstreamFault when there will be none."""
        live, request, services = self._live, self._request, self._services
        if live.fold.status == "queued":
            header = {**live.fold.header, "status": "in_progress"}
            services.committer.submit(live, [Draft("response.in_progress", {"response": header})])
        if not request.generate:
            return Finish([], Ending("completed", usage=NOTHING_USED))
        if request.truncation == "auto" or request.context_management is not None or request.compacts:
            self._fitting = Fitting(live, services.committer, self._context, services.compactor, backend, self._model)
            if request.compacts:
                return await self._fitting.compact_all()
        if self._tools is not None:
            return await self._run_tools(backend, self._tools)
        step = await self._ask(backend, self._make_call)
        return Finish(cast("list[AnyDraft]", step.drafts), step.ending)  # without tools, no calls are among them

    async def _run_tools(self, backend: Backend, tools: Tools) -> Finish:
        services = self._services
        loop = ToolLoop(
            self._live, services.committer, self._context, tools, self._model, services.counts, services.tracer
        )
        await loop.open()
        self._tool_loop = loop
        revived = self._live.fold.visible
        finish = await loop.resume()
        if not revived:
            self._begin_step()
        while finish is None:
            finish = await loop.take(await self._ask(backend, loop.make_call, loop.names))
            if finish is None:
                self._begin_step()
                failpoints.hit("between-steps")
        return finish

    def _choose_backend(self) -> Backend:
        """Route the request, and choose what the run uses: tools of the server's own, or a background run."""
        if self._backend is not None:
            return self._backend
        services, request = self._services, self._request
        self._backend, self._model = backend, _ = services.route(request.model)
        # A stepwise backend, such as an agent, has tools of its own.
        if services.tools is not None and not backend.stepwise and services.tools.toolbox.serves(request):
            self._tools = services.tools
        self._is_stepwise = backend.stepwise or self._tools is not None
        # No upstream keeps what is not to be stored (D4), and only a single answer can be reattached to.
        single = not self._is_stepwise and request.context_management is None
        if backend.background_runs is not None and request.store and single:
            self._reattach = Reattach(self._live, services.committer, backend.background_runs)
        return backend

    async def _make_call(self, text: OpenText | None) -> ModelCall:
        """Return the call: with the same context each time, or with one that holds the output so far."""
        request, context, live = self._request, self._context, self._live
        if not self._is_stepwise and request.context_management is None:
            items = await context.assemble()
            return ModelCall(self._model, request, items, text, large=context.is_large)
        own = live.fold.output if text is None else live.fold.output[: text.output_index]
        items = await context.assemble(own)
        response_id, owner, large = live.lease.response_id, live.claim.owner, context.is_large
        return ModelCall(self._model, request, items, text, len(own), live.flush, own, response_id, owner, large=large)

    # -- asking the model

    async def _ask(self, backend: Backend, make_call: MakeCall, tools: Container[str] | None = None) -> StepResult:
        """Ask the model until it has answered (D9, D10); calls of these `tools` are held back until the end. Raises the
        UpstreamFault to end with if it does not answer."""
        if self._fitting is not None and await self._fitting.compact(make_call):
            self._begin_step()
        decision, cause = self._decide(), None
        while decision.action in _GOES_ON:
            if self._live.fold.visible:
                await self._resume(decision)
            call = await make_call(decision.open_text)
            try:
                step = await self._ask_once(backend, call, decision, tools)
            except UpstreamFault as fault:
                self._services.counts.count_request(backend.name, fault)
                about = {"upstream": backend.name, "status": fault.status, "code": fault.code}
                log.warning("upstream request failed", extra=self._live.describe() | about)
                cause = fault.with_traceback(None)  # which holds this frame
                await self._live.flush()
                # A run that is reattached to goes on, and is paid once.
                self._live.count_attempt(broken=True, again=self._reattach is not None and self._reattach.has_run)
                shorter = self._fitting is not None and self._fitting.can_shrink(fault)
                if not shorter and not await self._wait_to_retry(fault):
                    raise
            else:
                self._services.counts.count_request(backend.name)
                return step
            decision = self._decide()
        if self._asked == 0:
            self._attempts -= 1  # claimed only to be ended: that was no attempt
        if decision.action is not Action.INTERRUPT:
            raise UpstreamFault(TOO_OFTEN, reason="worker_lost")
        raise cause or UpstreamFault(RESTARTED, reason="worker_lost")

    async def _resume(self, decision: Decision) -> None:
        """Note in the checkpoint where a visible answer is resumed, after closing what the last step left open."""
        live, fold, committer = self._live, self._live.fold, self._services.committer
        if decision.action is Action.NEXT_STEP:
            for close in (toolcalls.fail_open, endings.close_open):
                if drafts := close(fold):
                    committer.submit(live, drafts)
                    await live.flush()
        if fold.last != self._step_from:
            self._services.counts.continuations[decision.action.name.lower()] += 1
            await committer.save_checkpoint(live, resumed_at=[*live.checkpoint.resumed_at, fold.last + 1])

    async def _ask_once(
        self, backend: Backend, call: ModelCall, decision: Decision, tools: Container[str] | None
    ) -> StepResult:
        self._asked_again += self._asked > 0
        self._asked += 1
        if self._fitting is not None and decision.action is not Action.REATTACH:
            call = await self._fitting.fit(call)
        with self._services.tracer.start_model_call(self._request.origin, call, backend) as span:
            call = msgspec.structs.replace(call, headers=span.headers)
            if self._reattach is not None:
                step = await self._reattach.ask(backend, call, partial(self._listen, call))
            else:
                buffer = ToolCallBuffer(tools) if tools is not None else None
                step = await self._listen(call, partial(backend.stream, call), backend.translator(call), buffer)
            if self._services.tracer.is_tracing:
                span.note(describe_answer(step.ending))
            return step

    async def _listen(
        self, call: ModelCall, open_stream: OpenStream, translator: Translator, buffer: ToolCallBuffer | None = None
    ) -> StepResult:
        """Ask the model once, and emit what it answers as it comes, but for what a buffer holds back."""
        live, pending, tail, feed = self._live, self._live.pending, self._live.tail, translator.feed
        emit = partial(self._services.committer.submit, live)  # raises StaleFence if the response is lost
        if live.asked_at is None and not live.fold.visible:
            live.asked_at = self._clock.monotonic()
        estimate = partial(estimate_request, call.request, call.items)
        if call.resume is not None and live.step_usage is None:
            # The process that showed this text is gone, and with it the count of its input.
            live.estimated = live.estimated[0] + estimate(), live.estimated[1]
        # A try that reports nothing leaves what the one before it had reported.
        earlier = live.step_usage() if live.step_usage is not None else None
        live.step_usage = lambda: translator.usage() or earlier
        live.attempt = Attempt(translator.usage, estimate, call.resume.deltas if call.resume else 0, live.fold.size)

        def on_chunks(chunks: list[bytes]) -> bool:
            drafts: list[AnyDraft] = []
            if live.fold.size > MAX_TEXT:
                raise UpstreamFault(TOO_MUCH, retryable=False)
            try:
                for chunk in chunks:
                    drafts += feed(chunk)
            finally:
                # Drafts made before an error in the same read count.
                if buffer is not None:
                    drafts = buffer.feed(drafts)
                if drafts:
                    emit(drafts)
            return pending.size <= pending.most and not tail.lost

        stream = open_stream(on_chunks)
        try:
            async for chunks in stream:
                on_chunks(chunks)
                if pending.size > pending.most:
                    await live.flush()
                if tail.lost:
                    raise StaleFence
        finally:
            await stream.aclose()
        drafts, ending = translator.end()
        return StepResult(drafts if buffer is None else buffer.end(drafts), ending)

    def _begin_step(self) -> None:
        """Begin a step: everything shown so far is finished."""
        self._asked = 0
        self._began = self._clock.monotonic()
        self._step_from = self._live.fold.last

    # -- when the worker or the upstream broke

    def _decide(self) -> Decision:
        request = self._request
        # The logprobs of what was shown are not kept, so an answer with logprobs cannot be continued.
        with_logprobs = request.top_logprobs is not None or "message.output_text.logprobs" in request.include
        continuation = "none" if with_logprobs or self._backend is None else self._backend.continuation
        return recovery.decide(
            self._live.fold,
            attempts=self._attempts,
            resumed_at=self._live.checkpoint.resumed_at,
            continuation=continuation,
            text_format=(request.text.get("format") or {}).get("type", "text"),
            stepwise=self._is_stepwise,
            reattachable=self._reattach is not None and self._reattach.has_run,
        )

    async def _wait_to_retry(self, fault: UpstreamFault) -> bool:
        """Wait before the upstream is asked again; return False if it should not be."""
        fold = self._live.fold
        visible = fold.visible and fold.last != self._step_from
        if self._live.tail.lost or not fault.retryable or (not visible and self._asked > RETRIES):
            return False
        fruitless = self._live.checkpoint.resumed_at.count(fold.last + 1) if visible else self._asked
        if fruitless == 0:
            return True
        pause = fault.retry_after if fault.retry_after is not None else 0.5 * 2.0 ** (fruitless - 1)
        if self._clock.monotonic() - self._began + pause > RETRY_SECONDS and not visible:
            return False
        await self._clock.sleep(min(pause, RETRY_SECONDS))
        return True

    # -- for a worker that shuts down

    def can_release(self) -> bool:
        """Return True if another worker could go on from here, without dropping anything that was shown."""
        if self._tool_loop is not None and (released := self._tool_loop.can_release()) is not None:
            return released
        if not self._can_decide():
            return False
        if self._reattach is not None and self._reattach.has_run:
            return True
        if self._tool_loop is not None and not self._live.is_durable:
            return False
        decision = self._decide()
        nothing_open = next(self._live.fold.open_items(), None) is None
        return decision.open_text is not None or (decision.action is Action.NEXT_STEP and nothing_open)

    def can_resume(self) -> bool:
        """Return True if another worker could go on at all: with the next step, if not from here."""
        return self._can_decide() and self._decide().action in (Action.NEXT_STEP, Action.CONTINUE)

    def _can_decide(self) -> bool:
        try:
            self._choose_backend()
        except InvalidRequest:
            return False  # the model is not configured any more
        return True

    # -- the end

    async def _fail(self, fault: UpstreamFault) -> None:
        await self._live.flush()
        if self._limit is not None:
            self._limit.reschedule(None)
        await self._services.closer.fail(self._live, fault, self._attempts + self._asked_again)


def make_deadline_fault(message: str) -> UpstreamFault:
    """Make the fault that ends a response whose time is up."""
    return UpstreamFault(message, timed_out=True, retryable=False, reason="deadline_exceeded")
