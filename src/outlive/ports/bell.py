"""The bell: how nodes on one database tell each other to look. It may be lost without harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

# advanced   the journal of a response has reached this number; rung only for what was wanted
# wanted     somebody reads this response on the ringing node, and has it up to this number
# taken      the fence of this response was raised to this number: who holds a lower one has lost it
# waits      some response waits for a worker
# asking     is the connection that created this response still there?
# answering  it is, on the ringing node
# missed     never rung: what a listener hears when it may have missed something
Kind = Literal["advanced", "wanted", "taken", "waits", "asking", "answering", "missed"]


class Ring(NamedTuple):
    kind: Kind
    response_id: str = ""
    number: int = 0


Heard = Callable[[Ring], None]


class Bell(Protocol):
    """Truth is in the database alone: a ring that is lost, late or doubled delays somebody, and does nothing worse."""

    def ring(self, ring: Ring) -> None:
        """Tell the other nodes, soon. Returns at once, waits for nothing and never raises.

        What is rung while a ring is on its way goes out together; of rings alike but for their number the highest.
        """
        ...

    def listen(self, heard: Heard) -> None:
        """Call `heard`, on the loop, for each ring of another node (never for one's own), and with `missed` whenever
        the line was down and is up again."""
        ...
