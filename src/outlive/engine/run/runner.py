"""The runner: takes claims of one home to their end, or ends them from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outlive.core.errors import UpstreamFault
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.run import Run
from outlive.engine.run.tool_loop import Steps
from outlive.ports.backend import Backend
from outlive.ports.clock import Clock
from outlive.ports.history import History
from outlive.ports.ledger import Claim, RunLedger
from outlive.ports.toolbox import Tools

TOO_LONG = "The response ran longer than this server allows."

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
        tools: Tools | None = None,
        compactor: Compactor | None = None,
    ) -> None:
        self.route = route
        self.history = history
        self.clock = clock
        self.ledger = ledger
        self.committer = committer
        self.tools = tools
        self.compactor = compactor
        self.stepping: dict[str, Steps] = {}  # the runs whose tools are open, by response
        self._run_seconds = run_seconds

    async def run(self, claim: Claim, live: LiveResponse) -> None:
        """Run to the terminal event. Raises StaleFence when another has taken the response over."""
        run = Run(self, claim, live)
        if self._run_seconds is None:
            await run.go()
            return
        try:
            async with asyncio.timeout(self._run_seconds) as run.limit:
                await run.go()
        except TimeoutError:
            run.limit = None
            await run.give_up(UpstreamFault(TOO_LONG, timed_out=True, retryable=False))

    async def cancel(self, claim: Claim, live: LiveResponse) -> None:
        """End a response as cancelled, from outside its run."""
        await Run(self, claim, live).end("cancelled")

    async def break_off(self, claim: Claim, live: LiveResponse, why: str) -> None:
        """End a response that cannot go on, from outside its run."""
        await Run(self, claim, live).give_up(UpstreamFault(why, retryable=False))

    def can_continue(self, claim: Claim, live: LiveResponse) -> bool:
        """Whether another worker could go on in the same text, or with the next step."""
        if (steps := self.stepping.get(claim.lease.response_id)) is not None:
            return steps.may_be_handed_back()
        return Run(self, claim, live).can_continue()

    def can_go_on(self, claim: Claim, live: LiveResponse) -> bool:
        """Whether another worker could go on with the next step, though something half-shown is lost by that."""
        return Run(self, claim, live).can_go_on()
