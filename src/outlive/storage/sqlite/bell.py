"""The bell on SQLite: one server per file, so there is nobody to ring for, and nobody rings."""

from __future__ import annotations

from outlive.ports.bell import Heard, Ring


class NoBell:
    def ring(self, ring: Ring) -> None:
        pass

    def listen(self, heard: Heard) -> None:
        pass
