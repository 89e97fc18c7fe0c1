"""The heart on SQLite: the file's lock says that its holder lives, so nothing need beat."""

from __future__ import annotations


class NoHeartbeat:
    async def start(self) -> None:
        pass

    def tick(self) -> None:
        pass

    def is_beating(self) -> bool:
        return True

    async def stop(self) -> None:
        pass
