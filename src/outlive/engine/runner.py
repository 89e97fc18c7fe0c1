"""Running one response: ask the model, translate, commit, and always come to an end (D9, D10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outlive.core import endings, recovery
from outlive.core.context import assemble
from outlive.core.endings import Outcome, TerminalStatus
from outlive.core.errors import InvalidRequest, StorageUnavailable, UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.recovery import Verdict
from outlive.engine.committer import Committer
from outlive.engine.live import Live
from outlive.ports.backend import Backend, Ending, ModelCall
from outlive.ports.clock import Clock
from outlive.ports.history import History
from outlive.ports.ledger import Claim, RunLedger

# D10: how often an upstream that has shown nothing is asked again, and for how long in all.
RETRIES = 3
RETRY_SECONDS = 60.0

CUT_OFF = "The answer was cut off."
RESTARTED = "The server was interrupted, and this upstream cannot continue an answer in place."
TOO_OFTEN = "The server was interrupted before anything was answered, too often to try again."
TOO_LONG = "The response ran longer than this server allows."

# While the storage is down: how long until the next try.
STORAGE_PAUSE = 1.0
# More than this is put together in a thread, so that streams do not wait for it.
MANY_ITEMS = 500

Route = Callable[[str], tuple[Backend, str]]


class Runner:
    """Runs claims of one home: the ledger they are kept in, and its committer."""

    def __init__(
        self,
        route: Route,
        history: History,
        clock: Clock,
        ledger: RunLedger,
        committer: Committer,
        *,
        run_seconds: float | None = None,
    ) -> None:
        self.route = route
        self.history = history
        self.clock = clock
        self.ledger = ledger
        self.committer = committer
        self._run_seconds = run_seconds

    async def run(self, claim: Claim, live: Live) -> None:
        """Run to the terminal event. Raises StaleFence when another has taken the response over."""
        run = Run(self, claim, live)
        if self._run_seconds is None:
            await run.go()
            return
        try:
            async with asyncio.timeout(self._run_seconds):
                await run.go()
        except TimeoutError:
            await run.give_up(UpstreamFault(TOO_LONG, timed_out=True, retryable=False))

    async def cancel(self, claim: Claim, live: Live) -> None:
        """End a response as cancelled, from outside its run."""
        await Run(self, claim, live).end("cancelled")

    async def break_off(self, claim: Claim, live: Live, why: str) -> None:
        """End a response that cannot go on, from outside its run."""
        await Run(self, claim, live).give_up(UpstreamFault(why, retryable=False))

    def can_continue(self, claim: Claim, live: Live) -> bool:
        """Whether another worker could go on in the same text."""
        return Run(self, claim, live).can_continue()


class Run:
    """One claim being run."""

    def __init__(self, runner: Runner, claim: Claim, live: Live) -> None:
        self._runner = runner
        self._claim = claim
        self._live = live
        self._clock = runner.clock
        self._committer = runner.committer
        self._joints = list(claim.joints)
        self._attempts = max(claim.attempts, 1)
        self._asked = 0
        self._began = self._clock.monotonic()
        self._continuation: str = "none"

    async def go(self) -> None:
        try:
            await self._go()
        except InvalidRequest as error:
            # The history holds something that this upstream cannot be sent.
            await self.give_up(UpstreamFault(error.message, code="invalid_prompt", status=400, retryable=False))
        except StorageUnavailable as error:
            # The history cannot be read. What was shown stays; the end is written when the storage is back.
            await self.give_up(UpstreamFault(error.message, status=503, retryable=False))

    async def _go(self) -> None:
        live = self._live
        backend, model = self._route()
        if live.fold.status == "queued":
            header = {**live.fold.header, "status": "in_progress"}
            self._committer.submit(live, [Draft("response.in_progress", {"response": header})])
        items = await self._context()
        verdict, cause = self._decide(), UpstreamFault(RESTARTED)
        while verdict.what in ("again", "continue"):
            if verdict.open is not None:
                self._joints.append(live.fold.last + 1)
                await self._mark()
            try:
                await self._ask(backend, ModelCall(model, self._claim.request, items, verdict.open))
                return
            except UpstreamFault as fault:
                cause = fault
                await self._committer.settle(live)
                if not await self._is_worth_another(fault):
                    await self.give_up(fault)
                    return
            verdict = self._decide()
        if self._asked == 0:
            self._attempts -= 1  # taken only to be ended: that was no attempt
        await self.give_up(cause if verdict.what == "interrupted" else UpstreamFault(TOO_OFTEN))

    async def _mark(self) -> None:
        """Note the joint. A storage that is down for a while must not end an answer that can go on."""
        while not self._live.lost:
            try:
                await self._runner.ledger.mark(self._live.lease, self._joints)
                return
            except StorageUnavailable:
                await self._clock.sleep(STORAGE_PAUSE)

    async def _context(self) -> list[Json]:
        """What the model gets: the history of ended turns, and this response's own input."""
        request, place = self._claim.request, self._claim.place
        has_history = request.previous_response_id is not None or (request.conversation is not None and place.first > 0)
        history = await self._runner.history.before(place) if has_history else []
        if len(history) + len(request.input) > MANY_ITEMS:
            return await asyncio.to_thread(assemble, history, request.input)
        return assemble(history, request.input)

    async def _ask(self, backend: Backend, call: ModelCall) -> None:
        """Ask the model once; what it says is put up for commit as it comes, and its end ends the response."""
        live, submit = self._live, self._committer.submit
        self._asked += 1
        translator = backend.translator(call)
        feed = translator.feed
        stream = backend.stream(call)
        try:
            async for chunks in stream:
                drafts: list[AnyDraft] = []
                try:
                    for chunk in chunks:
                        drafts += feed(chunk)
                finally:
                    # What was said before an error in the same read counts as said.
                    if drafts:
                        submit(live, drafts)
                if live.crowded:
                    await self._committer.settle(live)
                if live.lost:
                    return
        finally:
            await stream.aclose()
        last, ending = translator.end()
        await self._finish(last, ending)

    # -- when it breaks

    def _decide(self) -> Verdict:
        request = self._claim.request
        text = request.text.get("format") or {}
        # The logprobs of what was shown are not kept, so an answer with logprobs cannot be made whole again.
        with_logprobs = request.top_logprobs is not None or "message.output_text.logprobs" in request.include
        return recovery.decide(
            self._live.fold,
            attempts=self._attempts,
            joints=self._joints,
            continuation="none" if with_logprobs else self._continuation,
            text_format=text.get("type", "text"),
        )

    def can_continue(self) -> bool:
        self._route()
        return self._decide().what == "continue"

    def _route(self) -> tuple[Backend, str]:
        backend, model = self._runner.route(self._claim.request.model)
        self._continuation = backend.continuation
        return backend, model

    async def _is_worth_another(self, fault: UpstreamFault) -> bool:
        """Whether to ask the upstream again, and the wait before that."""
        visible = self._live.fold.visible
        if self._live.lost or not fault.retryable or (not visible and self._asked > RETRIES):
            return False
        fruitless = self._joints.count(self._live.fold.last + 1) if visible else self._asked
        if fruitless == 0:
            return True
        pause = fault.retry_after if fault.retry_after is not None else 0.5 * 2.0 ** (fruitless - 1)
        if self._clock.monotonic() - self._began + pause > RETRY_SECONDS and not visible:
            return False
        await self._clock.sleep(min(pause, RETRY_SECONDS))
        return True

    async def give_up(self, fault: UpstreamFault) -> None:
        """The end when there will be no good one: `failed` if nothing was visible, else `incomplete` (D10)."""
        await self._committer.settle(self._live)
        if self._live.fold.visible:
            await self.end("incomplete", message=f"{CUT_OFF} {fault.message}")
        else:
            self._live.cause = fault
            await self.end("failed", error={"code": fault.code, "message": fault.message})

    # -- how it ends

    async def _finish(self, drafts: list[AnyDraft], ending: Ending) -> None:
        await self._close(
            drafts,
            Outcome(
                status=ending.status,
                at=int(self._clock.now()),
                usage=ending.usage,
                model=ending.model,
                service_tier=ending.service_tier,
                reason=ending.reason,
                **self._history_of_attempts(),
            ),
        )

    async def end(self, status: TerminalStatus, *, message: str | None = None, error: Json | None = None) -> None:
        """End it as it stands: what is open is closed as incomplete."""
        await self._committer.settle(self._live)
        outcome = Outcome(
            status=status,
            at=int(self._clock.now()),
            reason="interrupted" if status == "incomplete" else None,
            message=message,
            error=error,
            **self._history_of_attempts(),
        )
        await self._close(endings.close_open(self._live.fold), outcome)

    def _history_of_attempts(self) -> Json:
        asked = self._attempts + max(self._asked - 1, 0)
        # Each joint is another asking, also where no attempt was counted: in a process before this, or handed back.
        return {"attempts": max(asked, len(self._joints) + 1), "joints": self._joints}

    async def _close(self, drafts: list[AnyDraft], outcome: Outcome) -> None:
        live = self._live
        if live.lost or live.ended:
            return
        live.collect(drafts)
        output = [item for _, item in sorted(live.output.items())]
        terminal = endings.terminal(endings.end(live.fold.header, output, outcome))
        await self._committer.close(
            live,
            [*drafts, terminal],
            status=outcome.status,
            snapshot=endings.snapshot_of(terminal),
            turn=endings.turn(output),
        )
