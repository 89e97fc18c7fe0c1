"""The heart: how a worker says that it lives. Its leases are its own only as long as the heart beats."""

from __future__ import annotations

from typing import Protocol

# A loop that has not ticked for so long hangs: what it runs is better taken over.
HUNG_SECONDS = 30.0


class Heartbeat(Protocol):
    """Beats for one worker, from a thread of its own, so that a busy loop does not lose its leases. Times are the
    database's; a beat holds for the lease time. A storage that is down is tried again for as long as it takes."""

    async def start(self) -> None:
        """Returns after the first beat: from then on what this worker takes is its own."""
        ...

    def tick(self) -> None:
        """The loop is alive. Without this for `HUNG_SECONDS` the heart stops beating until the next one."""
        ...

    def is_beating(self) -> bool:
        """Whether what this worker takes now is its own: the last beat still holds. Costs nothing."""
        ...

    async def stop(self) -> None:
        """The last beat: the worker is gone, and what it still holds is free for anyone at once."""
        ...
