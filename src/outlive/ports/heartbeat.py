"""The heartbeat: shows that a worker lives. Its leases are its own only while its last beat is valid."""

from __future__ import annotations

from typing import Protocol

# A loop that has not ticked for so long hangs: another worker should take over what it runs.
HUNG_SECONDS = 30.0


class Heartbeat(Protocol):
    """Beats for one worker, from a thread of its own, so that a busy loop does not lose its leases.

    A beat is valid for the lease time, by the database's clock. While the storage is down, it is tried again.
    """

    async def start(self) -> None:
        """Return after the first beat: from then on the leases that this worker takes are its own."""

    def tick(self) -> None:
        """Show that the loop is alive. Without this for `HUNG_SECONDS` the beats stop until the next tick."""

    def is_beating(self) -> bool:
        """Return True if the last beat is valid, so that leases taken now are this worker's own. Costs nothing."""

    async def stop(self) -> None:
        """Withdraw the last beat: the worker is gone, and its leases are free for any worker at once."""


class NoHeartbeat:
    """The heartbeat of a database with a single server, whose lock on the file shows that it lives."""

    async def start(self) -> None:
        pass

    def tick(self) -> None:
        pass

    def is_beating(self) -> bool:
        return True

    async def stop(self) -> None:
        pass
