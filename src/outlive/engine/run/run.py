"""One response being run: ask the model, translate, commit, and always come to an end (D9, D10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from outlive.core import endings, recovery
from outlive.core.endings import Outcome, TerminalStatus
from outlive.core.errors import InvalidRequest, StorageUnavailable, UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.naming import Renaming
from outlive.core.recovery import Action, Decision, OpenText
from outlive.core.toolcalls import calls
from outlive.core.usage import NOTHING_USED, add_usage
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.context import STORAGE_PAUSE, ContextLoader
from outlive.engine.run.fitting import Fitting
from outlive.engine.run.reattach import Reattaching, attach, let_go
from outlive.engine.run.tool_loop import Steps
from outlive.ports.backend import Backend, Ending, ModelCall, OnChunks, Translator
from outlive.ports.ledger import Claim
from outlive.ports.toolbox import Tools

if TYPE_CHECKING:
    from outlive.engine.run.runner import Runner

# D10: how often an upstream that has shown nothing is asked again, and for how long in all.
RETRIES = 3
RETRY_SECONDS = 60.0

CUT_OFF = "The answer was cut off."
RESTARTED = "The server was interrupted, and this upstream cannot continue an answer in place."
TOO_OFTEN = "The server was interrupted before anything was answered, too often to try again."

# What the model says at the end of a step, not shown yet, and how it ended.
Said: TypeAlias = tuple[list[AnyDraft], Ending]
MakeCall: TypeAlias = Callable[[OpenText | None], Awaitable[ModelCall]]
Ask: TypeAlias = Callable[[OnChunks], AsyncGenerator[list[bytes], None]]
Sift: TypeAlias = Callable[[Translator], Translator]


class Run:
    """One claim being run."""

    def __init__(self, runner: Runner, claim: Claim, live: LiveResponse) -> None:
        self.runner = runner
        self.claim = claim
        self.live = live
        self.clock = runner.clock
        self.committer = runner.committer
        self.notes = claim.checkpoint
        if claim.checkpoint.upstream is not None:
            live.upstream = claim.checkpoint.upstream
        self._attempts = max(claim.attempts, 1)
        self._asked = 0  # in this step
        self._again = 0  # in all steps, how often for the second time and more
        self._tools: Tools | None = None  # where the run uses tools of the server's own
        self._stepwise = False  # the answer is made in several steps
        self._reattaching: Reattaching | None = None  # where it goes on at the upstream without us
        self._replay_from = -1  # the last event before this step, where nothing was visible of it then
        self._began = self.clock.monotonic()
        self.limit: asyncio.Timeout | None = None  # on the time it may take
        self._continuation: str = "none"
        past = ContextLoader(claim, runner.history, runner.compactor, self.clock)
        self.history, self.context = past.history, past.context
        self._fitting: Fitting | None = None
        self._renaming = Renaming() if claim.request.event_names != "openai" else None

    async def go(self) -> None:
        try:
            await self._go()
        except InvalidRequest as error:
            # The history holds something that this upstream cannot be sent.
            await self.give_up(UpstreamFault(error.message, code="invalid_prompt", status=400, retryable=False))
        except StorageUnavailable as error:
            # The history cannot be read, for minutes. What was shown stays; the end is written when that is back.
            await self.give_up(UpstreamFault(error.message, status=503, retryable=False))

    async def _go(self) -> None:
        live = self.live
        backend, model = self._route()
        if live.fold.status == "queued":
            header = {**live.fold.header, "status": "in_progress"}
            self.committer.submit(live, [Draft("response.in_progress", {"response": header})])
        if not self.claim.request.generate:
            await self.finish([], Ending("completed", usage=NOTHING_USED))
            return
        self._fitting = self._make_fitting(backend, model)
        if self._fitting is not None and self.claim.request.compacts:
            await self._fitting.compact_all()
            return
        if self._tools is not None:
            await Steps(self, self._tools, backend, model).go()
            return
        make = await self._prepare(backend, model)
        said = await self.ask(backend, make)
        if said is not None:
            await self.finish(*said)

    async def _prepare(self, backend: Backend, model: str) -> MakeCall:
        """How to ask: with the same context each time, or with what there is by then."""
        request = self.claim.request
        if backend.stepwise or request.context_management is not None:

            async def make_next(text: OpenText | None) -> ModelCall:
                output = self.live.fold.output
                own = output if text is None else output[: text.output_index]
                items, claim = await self.context(own), self.claim
                whose = (claim.lease.response_id, claim.owner)
                return ModelCall(model, request, items, text, len(own), self.settle, own, *whose)

            return make_next
        items = await self.context()

        async def make(text: OpenText | None) -> ModelCall:
            return ModelCall(model, request, items, text)

        return make

    async def ask(self, backend: Backend, make: MakeCall, sift: Sift | None = None) -> Said | None:
        """Ask the model until it has answered (D9, D10); None when that was given up, or is somebody else's now."""
        live, fitting = self.live, self._fitting
        if fitting is not None:
            await fitting.compact(make)
        decision, cause = self._decide(), None
        while decision.action not in (Action.INTERRUPT, Action.FAIL):
            if decision.action == Action.NEXT_STEP:
                await self._close_step()
            if live.fold.visible and live.fold.last != self._replay_from:
                await self.note(resumed_at=[*self.notes.resumed_at, live.fold.last + 1])
            try:
                call = await make(decision.open_text)
                if fitting is not None and decision.action != Action.REATTACH:
                    call = await fitting.fit(call)
                if self._reattaching is not None:
                    return await self._reattaching.ask(backend, call)
                translator = backend.translator(call)
                translator = translator if sift is None else sift(translator)
                return await self.listen(partial(backend.stream, call), translator)
            except UpstreamFault as fault:
                cause = fault
                await self.committer.settle(live)
                shorter = fitting is not None and fitting.can_shrink(fault)
                if not shorter and not await self._is_worth_another(fault):
                    await self.give_up(fault)
                    return None
            decision = self._decide()
        if self._asked == 0:
            self._attempts -= 1  # taken only to be ended: that was no attempt
        if decision.action != Action.INTERRUPT:
            cause = UpstreamFault(TOO_OFTEN)
        await self.give_up(cause or UpstreamFault(RESTARTED))
        return None

    def _make_fitting(self, backend: Backend, model: str) -> Fitting | None:
        """Nearly all requests want their context as it is."""
        request, compactor = self.claim.request, self.runner.compactor
        if compactor is None or not (
            request.truncation == "auto" or request.context_management is not None or request.compacts
        ):
            return None
        return Fitting(self, compactor, backend, model)

    async def _close_step(self) -> None:
        """End what a step that was broken off has left open."""
        for close in (calls.fail_open, endings.close_open):
            if drafts := self._rename(close(self.live.fold)):
                self.committer.submit(self.live, drafts)
                await self.settle()

    def begin_step(self) -> None:
        """All that was shown so far is finished; what comes now is a step of its own."""
        self._asked = 0
        self._began = self.clock.monotonic()
        self._replay_from = self.live.fold.last

    async def note(self, **changes: Any) -> None:
        """Keep what the next worker must know. A storage that is down for a while must not end what can go on."""
        self.notes = msgspec.structs.replace(self.notes, **changes)
        while not self.live.lost:
            try:
                await self.runner.ledger.save_checkpoint(self.live.lease, self.notes)
                return
            except StorageUnavailable:
                await self.clock.sleep(STORAGE_PAUSE)

    async def settle(self) -> None:
        """Wait until all that was said so far is durable."""
        await self.committer.settle(self.live)

    async def listen(self, ask: Ask, translator: Translator) -> Said | None:
        """Ask the model once; what it says is put up for commit as it comes."""
        live, submit = self.live, self.committer.submit
        self._again += self._asked > 0
        self._asked += 1
        feed = translator.feed if self._renaming is None else self._renaming.follow(translator.feed)

        def on_chunks(chunks: list[bytes]) -> bool:
            drafts: list[AnyDraft] = []
            try:
                for chunk in chunks:
                    drafts += feed(chunk)
            finally:
                # What was said before an error in the same read counts as said.
                if drafts:
                    submit(live, drafts)
            return not (live.crowded or live.lost)

        async with aclosing(ask(on_chunks)) as stream:
            async for chunks in stream:
                on_chunks(chunks)
                if live.crowded:
                    await self.committer.settle(live)
                if live.lost:
                    return None
        drafts, ending = translator.end()
        return self._rename(drafts), ending

    # -- when it breaks

    def _decide(self) -> Decision:
        request = self.claim.request
        text = request.text.get("format") or {}
        # The logprobs of what was shown are not kept, so an answer with logprobs cannot be made whole again.
        with_logprobs = request.top_logprobs is not None or "message.output_text.logprobs" in request.include
        return recovery.decide(
            self.live.fold,
            attempts=self._attempts,
            resumed_at=self.notes.resumed_at,
            continuation="none" if with_logprobs else self._continuation,
            text_format=text.get("type", "text"),
            stepwise=self._stepwise,
            reattachable=self._reattaching is not None and self.notes.upstream is not None,
        )

    def can_continue(self) -> bool:
        """Whether another worker could go on from here, and nothing that was shown would have to be given up."""
        self._route()
        if self._reattaching is not None and self.live.upstream is not None:
            return True
        decision = self._decide()
        return decision.open_text is not None or (
            decision.action == Action.NEXT_STEP and next(self.live.fold.open_items(), None) is None
        )

    def can_go_on(self) -> bool:
        """Whether another worker could go on at all: with the next step, if not from here."""
        self._route()
        return self._decide().action in (Action.NEXT_STEP, Action.CONTINUE)

    def _route(self) -> tuple[Backend, str]:
        backend, model = self.runner.route(self.claim.request.model)
        self._continuation = backend.continuation
        tools, request = self.runner.tools, self.claim.request
        # What makes its own steps has tools of its own, too.
        ours = tools is not None and not backend.stepwise and tools.toolbox.serves(request)
        self._tools = tools if ours else None
        self._stepwise = backend.stepwise or self._tools is not None
        if backend.background_runs is not None:
            self._reattaching = attach(self, backend.background_runs, self._stepwise)
        return backend, model

    async def _is_worth_another(self, fault: UpstreamFault) -> bool:
        """Whether to ask the upstream again, and the wait before that."""
        visible = self.live.fold.visible and self.live.fold.last != self._replay_from
        if self.live.lost or not fault.retryable or (not visible and self._asked > RETRIES):
            return False
        fruitless = self.notes.resumed_at.count(self.live.fold.last + 1) if visible else self._asked
        if fruitless == 0:
            return True
        pause = fault.retry_after if fault.retry_after is not None else 0.5 * 2.0 ** (fruitless - 1)
        if self.clock.monotonic() - self._began + pause > RETRY_SECONDS and not visible:
            return False
        await self.clock.sleep(min(pause, RETRY_SECONDS))
        return True

    async def give_up(self, fault: UpstreamFault) -> None:
        """The end when there will be no good one: `failed` if nothing was visible, else `incomplete` (D10)."""
        await self.committer.settle(self.live)
        if self.live.fold.visible:
            await self.end("incomplete", message=f"{CUT_OFF} {fault.message}")
        else:
            self.live.cause = fault
            await self.end("failed", error={"code": fault.code, "message": fault.message})

    # -- how it ends

    async def finish(self, drafts: list[AnyDraft], ending: Ending) -> None:
        await self._close(
            drafts,
            Outcome(
                status=ending.status,
                at=int(self.clock.now()),
                usage=add_usage(self.notes.compaction, ending.usage),
                model=ending.model,
                service_tier=ending.service_tier,
                reason=ending.reason,
                **self._history_of_attempts(),
            ),
        )

    async def end(self, status: TerminalStatus, *, message: str | None = None, error: Json | None = None) -> None:
        """End it as it stands: what is open is closed as incomplete."""
        await self.committer.settle(self.live)
        outcome = Outcome(
            status=status,
            at=int(self.clock.now()),
            reason="interrupted" if status == "incomplete" else None,
            message=message,
            error=error,
            **self._history_of_attempts(),
        )
        await self._close(self._rename(endings.close_open(self.live.fold)), outcome)

    def _rename(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        return drafts if self._renaming is None else self._renaming.rename(drafts)

    def _history_of_attempts(self) -> Json:
        resumed_at = self.notes.resumed_at
        # Each joint is another asking, also where no attempt was counted: in a process before this, or handed back.
        return {"attempts": max(self._attempts + self._again, len(resumed_at) + 1), "resumed_at": resumed_at}

    async def _close(self, drafts: list[AnyDraft], outcome: Outcome) -> None:
        live = self.live
        live.ending = True
        if self.limit is not None:
            self.limit.reschedule(None)  # what has been said in time is not too late now
        async with self.committer.ending:
            if live.lost or live.ended:
                return
            live.collect(drafts)
            output = [item for _, item in sorted(live.output.items())]
            terminal = endings.terminal(endings.end(live.fold.header, output, outcome))
            await self.committer.close(
                live,
                [*drafts, terminal],
                status=outcome.status,
                snapshot=endings.snapshot_of(terminal),
                turn=endings.turn(output),
            )
        # Not at the gate: one end that cannot be committed must not keep all others from theirs.
        await self.committer.closed(live)
        if live.upstream is not None:
            let_go(self, outcome)
