"""A run that goes on at its upstream whatever becomes of this server, and is taken up again: nothing is paid twice.

The upstream's id of the run is noted before anything of it is shown, with the number of the last event before it.
Whoever takes the run up asks for all that it has said, from the beginning, and drops what the journal holds already.
Once the response has ended, the upstream is asked to keep no copy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from outlive import failpoints
from outlive.core.endings import Outcome
from outlive.core.errors import InvalidRequest, LostRun, UpstreamFault
from outlive.core.events import AnyDraft
from outlive.core.replay_filter import ReplayFilter
from outlive.ports.backend import Backend, BackgroundRuns, Ending, ModelCall, Translator

if TYPE_CHECKING:
    from outlive.engine.run.run import Run, Said


def attach(run: Run, lasting: BackgroundRuns, stepwise: bool) -> Reattaching | None:
    """No upstream is asked to keep what is not to be stored (D4); and only what is one answer can be taken up."""
    request = run.claim.request
    if not request.store or stepwise or request.context_management is not None:
        return None
    return Reattaching(run, lasting)


def let_go(run: Run, outcome: Outcome) -> None:
    """The response has ended, so nobody needs the upstream's copy any more; nor the run, if that goes on there."""
    run_id, run.live.upstream = run.live.upstream, None
    try:
        backend, _ = run.runner.route(run.claim.request.model)
    except InvalidRequest:
        return  # the upstream is not one of ours any more
    if run_id is not None and backend.background_runs is not None:
        over = outcome.status == "completed" or (outcome.status == "incomplete" and outcome.message is None)
        backend.background_runs.dismiss(run_id, running=not over)


class ReplayingTranslator:
    """A translator of which only what is new comes out."""

    def __init__(self, translator: Translator, replay: ReplayFilter) -> None:
        self._translator = translator
        self._replay = replay
        self.failed = False  # the upstream itself has said that the run came to nothing

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        try:
            drafts = self._translator.feed(chunk)
        except UpstreamFault:
            self.failed = True
            raise
        return drafts if self._replay.is_over else self._replay.filter(drafts)

    def end(self) -> tuple[list[AnyDraft], Ending]:
        self._replay.end()
        try:
            return self._translator.end()
        except UpstreamFault:
            self.failed = True
            raise


class Reattaching:
    """One run at an upstream whose runs last."""

    def __init__(self, run: Run, lasting: BackgroundRuns) -> None:
        self._run = run
        self._lasting = lasting

    async def ask(self, backend: Backend, call: ModelCall) -> Said | None:
        """Submit the run, or take up the one that was submitted. Raises UpstreamFault."""
        run = self._run
        call = msgspec.structs.replace(call, response_id=run.claim.lease.response_id)
        known = 0 if run.notes.upstream is None else run.live.fold.last - run.notes.replay_from
        retelling = ReplayingTranslator(backend.translator(call), ReplayFilter(run.live.fold, known))
        try:
            return await run.listen(lambda _: self._stream(call), retelling)
        except UpstreamFault as fault:
            if retelling.failed or isinstance(fault, LostRun):
                await self._drop(lost=isinstance(fault, LostRun))
            raise

    async def _stream(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        """What the run says; not before its id is noted."""
        run_id = self._run.notes.upstream
        stream = self._lasting.submit(call) if run_id is None else self._lasting.follow(run_id)
        async with aclosing(stream):
            async for chunks in stream:
                if run_id is None and (run_id := self._lasting.read_id(chunks)) is not None:
                    await self._note(run_id)
                yield chunks

    async def _note(self, run_id: str) -> None:
        run = self._run
        failpoints.hit("before-upstream-noted")
        await run.settle()
        run.live.upstream = run_id
        await run.note(upstream=run_id, replay_from=run.live.fold.last)

    async def _drop(self, lost: bool) -> None:
        """There is nothing more to be had from that run: the next one is another."""
        run_id, self._run.live.upstream = self._run.live.upstream, None
        if run_id is not None and not lost:
            self._lasting.dismiss(run_id, running=False)
        await self._run.note(upstream=None, replay_from=-1)
