"""The connection under a request: what it offers beyond ASGI."""

from __future__ import annotations

from collections.abc import Callable


class ClientConnection:
    """A connection to a client. This one can do none of it, and never breaks; `protocol` has the real one."""

    __slots__ = ("_on_cut", "is_cut")

    def __init__(self) -> None:
        self.is_cut = False  # the client is gone
        self._on_cut: Callable[[], None] | None = None

    def write_now(self, body: bytes) -> bool:
        """Write a piece of a streamed body at once, or write nothing and return False: the client is slow or gone."""
        return False

    def is_hung_up(self) -> bool:
        """Return True if the client is gone, also if only the operating system knows that by now."""
        return self.is_cut

    def watch(self, on_cut: Callable[[], None] | None) -> None:
        """Call `on_cut` once the client is gone, which `send` does not report; at once if it is. None stops that."""
        self._on_cut = on_cut
        if self.is_cut and on_cut is not None:
            on_cut()

    async def was_read(self) -> bool:
        """Return True if the client has read the whole answer, as far as can be known. Call after the last send."""
        return True

    def cut(self) -> None:
        """Note that the client is gone."""
        self.is_cut = True
        if self._on_cut is not None:
            self._on_cut()
