"""Reattaching to a background run of the upstream: it goes on there if this server dies, and nothing is paid twice.

The upstream's id of the run is saved before anything of the run is shown, with the number of the last event before it.
The next worker asks for all events of the run, from the first on, and drops those that the journal holds already. Once
the response has ended, the closer has the upstream delete its copy.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from outlive import failpoints
from outlive.core.errors import LostRun, UpstreamFault
from outlive.core.events import AnyDraft
from outlive.core.recovery import ReplayFilter
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.plans import OpenStream, StepResult
from outlive.ports.backend import Backend, BackgroundRuns, Ending, ModelCall, Translator

Listen: TypeAlias = Callable[[OpenStream, Translator], Awaitable[StepResult]]


class ReplayingTranslator:
    """A translator that drops what the journal holds already."""

    def __init__(self, translator: Translator, replay: ReplayFilter) -> None:
        self._translator = translator
        self._replay = replay
        self.usage = translator.usage
        self.failed = False  # the upstream itself reported that the run failed

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        try:
            drafts = self._translator.feed(chunk)
        except UpstreamFault:
            self.failed = True
            raise
        return self._replay.filter(drafts)

    def end(self) -> tuple[list[AnyDraft], Ending]:
        self._replay.end()
        try:
            return self._translator.end()
        except UpstreamFault:
            self.failed = True
            raise


@dataclass(eq=False)
class Reattach:
    """Submits one run to the upstream's background, and reattaches to it."""

    _live: LiveResponse
    _committer: Committer
    _background_runs: BackgroundRuns

    @property
    def has_run(self) -> bool:
        """True if a run was submitted that can be reattached to."""
        return self._live.checkpoint.upstream is not None

    async def ask(self, backend: Backend, call: ModelCall, listen: Listen) -> StepResult:
        """Submit the run, or reattach to the one that was submitted. Raises UpstreamFault."""
        live = self._live
        call = msgspec.structs.replace(call, response_id=live.lease.response_id)
        known = live.fold.last - live.checkpoint.replay_from if self.has_run else 0
        translator = ReplayingTranslator(backend.translator(call), ReplayFilter(live.fold, known))
        try:
            return await listen(lambda _: self._stream(call), translator)
        except UpstreamFault as fault:
            # Forget a run that failed or is gone: the next try submits another one.
            lost, run_id = isinstance(fault, LostRun), live.checkpoint.upstream
            if run_id is not None and translator.failed and not lost:
                self._background_runs.dismiss(run_id, running=False)
            if translator.failed or lost:
                await self._committer.save_checkpoint(live, upstream=None, replay_from=-1)
            raise

    async def _stream(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        """Yield the chunks of the run; none before its id is saved."""
        live, run_id = self._live, self._live.checkpoint.upstream
        stream = self._background_runs.submit(call) if run_id is None else self._background_runs.follow(run_id)
        async with aclosing(stream):
            async for chunks in stream:
                if run_id is None and (run_id := self._background_runs.read_id(chunks)) is not None:
                    failpoints.hit("before-upstream-noted")
                    await live.flush()
                    await self._committer.save_checkpoint(live, upstream=run_id, replay_from=live.fold.last)
                yield chunks
