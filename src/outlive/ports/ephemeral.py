"""What the engine needs of a ledger that keeps nothing."""

from __future__ import annotations

from typing import Protocol

from outlive.ports.ledger import Lease, RunLedger


class EphemeralLedger(RunLedger, Protocol):
    def admit(self, response_id: str, frames: bytes, count: int) -> Lease: ...

    def forget(self, response_id: str) -> None:
        """Nobody reads it any more: nothing of it stays."""
        ...
