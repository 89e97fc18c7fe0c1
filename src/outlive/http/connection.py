"""What a request may do with the connection under it, beyond what ASGI offers."""

from __future__ import annotations

from collections.abc import Callable


class ClientConnection:
    """By itself it stands for a connection that can do none of it, and never breaks."""

    __slots__ = ("_on_cut", "is_cut")

    def __init__(self) -> None:
        self.is_cut = False
        self._on_cut: Callable[[], None] | None = None

    def write_now(self, body: bytes) -> bool:
        """Write a piece of a streamed body on the spot; False when the client is slow or gone, and nothing was
        written."""
        return False

    def has_hung_up(self) -> bool:
        """Whether the client is gone, also where only the system knows that by now."""
        return self.is_cut

    def watch(self, on_cut: Callable[[], None] | None) -> None:
        """Call this once the client is gone (which `send` does not tell), at once if it is; None: nothing any more."""
        self._on_cut = on_cut
        if self.is_cut and on_cut is not None:
            on_cut()

    async def is_taken(self) -> bool:
        """Whether the client has read the whole answer, as far as that can be known. For use after the last send."""
        return True

    def cut(self) -> None:
        """The client is gone."""
        self.is_cut = True
        if self._on_cut is not None:
            self._on_cut()
