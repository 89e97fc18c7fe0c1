"""Budgets: bytes that each owner may hold in memory at once. What goes beyond waits for its turn."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from outlive.core.owners import name_of

# Bytes of answers that each owner may have loaded and not sent, those that one counts for until its size is known, and
# those up to which one does not count.
OWNER_ANSWERS = 128 * 1024 * 1024
ANSWER_BYTES = 16 * 1024 * 1024
SMALL_ANSWER = 256 * 1024


@dataclass(slots=True)
class _Account:
    """The bytes of one owner, and the requests for more in the order in which they came."""

    used: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class ByteBudget:
    """Counts bytes by the names of owners. One that asks for more than all gets all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._accounts: dict[str, _Account] = {}

    async def acquire(self, owner: str, size: int) -> int:
        """Wait until the owner may hold so many bytes more. Returns the number to give back to `release`. To hold some
        and ask for more could wait for ever: ask once, for all."""
        owner, size = name_of(owner), min(size, self.most)
        account = self._accounts.setdefault(owner, _Account())
        if not account.waiting and account.used + size <= self.most:
            account.used += size
            return size
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        account.waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(owner, size)
            else:
                turn.cancel()
                self.release(owner, 0)  # those behind it may fit
            raise
        return size

    def take(self, owner: str, size: int) -> bool:
        """Take so many bytes at once if the owner may hold them, without waiting. Returns False if not."""
        account = self._accounts.get(name_of(owner)) or _Account()
        if account.waiting or account.used + size > self.most:
            return False
        account.used += size
        self._accounts[name_of(owner)] = account
        return True

    def release(self, owner: str, size: int) -> None:
        owner = name_of(owner)
        account = self._accounts[owner]
        account.used -= size
        while account.waiting:
            wanted, turn = account.waiting[0]
            if not turn.done():
                if account.used + wanted > self.most:
                    return
                account.used += wanted
                turn.set_result(None)
            account.waiting.popleft()
        if account.used == 0:
            del self._accounts[owner]


@dataclass(slots=True, eq=False)
class Reservation:
    """The bytes of one answer, or of one part of a stream at a time, in the budget of its owner."""

    _budget: ByteBudget
    _owner: str
    _held: int = 0

    async def reserve(self) -> None:
        """Release, and wait until the owner's other answers leave room for one more, which may be large."""
        self.release()
        self._held = await self._budget.acquire(self._owner, ANSWER_BYTES)

    def settle(self, size: int) -> None:
        """Count for the bytes that were loaded; for none if those are few."""
        kept = min(size, self._held) if size > SMALL_ANSWER else 0
        if kept < self._held:
            self._budget.release(self._owner, self._held - kept)
            self._held = kept

    def release(self) -> None:
        """Count for nothing: the answer was sent, or is not wanted any more."""
        self.settle(0)
