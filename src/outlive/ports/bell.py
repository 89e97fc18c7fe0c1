"""The bell: nodes on one database notify each other of changes. A ring may be lost without harm."""

from collections.abc import Callable
from typing import Literal, NamedTuple

# advanced   the journal of a response has reached this number; rung only for responses that were wanted
# wanted     a client reads this response on the ringing node, which has it up to this number
# taken      the fence of this response was raised to this number: a holder of a lower one has lost it
# waits      some response is queued
# asking     is the connection that created this response still there?
# answering  it is, on the ringing node
# missed     never rung: a listener gets it when it may have missed rings
Kind = Literal["advanced", "wanted", "taken", "waits", "asking", "answering", "missed"]


class Ring(NamedTuple):
    kind: Kind
    response_id: str = ""
    number: int = 0


Listener = Callable[[Ring], None]


class Bell:
    """The state is in the database alone: a ring that is lost, late or doubled causes a delay, and no other harm. This
    is the bell of a database with a single server: it has no other nodes to notify."""

    def ring(self, ring: Ring) -> None:
        """Notify the other nodes soon. Returns at once and never raises.

        Rings that gather while one is on its way go out together; of rings that differ only in their number, the
        highest.
        """

    def listen(self, listener: Listener) -> None:
        """Call `listener`, on the loop, for each ring of another node (never for this node's own), and with `missed`
        whenever the connection was lost and is up again."""
