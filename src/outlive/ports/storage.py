"""The ports of one database, and all of them together; and what the engine stores by single statements of its own."""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol

import msgspec

from outlive.core.events import Json
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.database import LoadedItems, Statements
from outlive.ports.journal import Journal
from outlive.ports.ledger import Ledger, Position
from outlive.ports.retention import Retention

# A loop that has not ticked for so long hangs: another worker should take over what it runs.
HUNG_SECONDS = 30.0
UNBOUNDED = 1 << 40

Role = Literal["user", "read", "admin"]  # read: may only GET; admin: sees the lists of all owners


class History(Protocol):
    """Reads the items of a thread before a position, for a model's context."""

    async def before(self, position: Position, most: int = UNBOUNDED) -> LoadedItems:
        """Read the items of all ended turns before a position, oldest first; one indexed range per fork. If they have
        more bytes than `most`, only the newest are read, up to the one with which they have."""

    async def find_outputs(self, owner: str, item_ids: list[str]) -> list[Json]:
        """Find those of these items that are output of an owner's response, oldest first."""

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        """Find the position of a response that will not be stored. Raises as an admission does, but takes no lock."""


class Ticket(msgspec.Struct, frozen=True):
    """Read-only access to one response or conversation until a time."""

    id: str
    owner: str
    target: str  # the id of what it opens
    expires_at: float
    digest: bytes  # of its secret


class Key(msgspec.Struct, frozen=True):
    """The rights of a caller: those of a key, of the settings or of the database, or of a token from outside."""

    id: str  # empty for what is not in the database
    owner: str
    role: Role = "user"
    acts_for: bool = False  # its requests may name an end user
    digest: bytes = b""
    created_at: float = 0.0
    expires_at: float | None = None
    last_used_at: float | None = None  # within a minute
    revoked_at: float | None = None


class AuditEntry(NamedTuple):
    """A change of a key or an owner, without any secret or content."""

    at: float
    actor: str  # the owner whose key was used, or the command line
    action: str  # such as `key.created`
    subject: str  # the id of a key, or the name of an owner
    detail: str = ""


class Packed(NamedTuple):
    """Journals that were packed in one step, and the bytes of their frames and of the blocks."""

    responses: int = 0
    before: int = 0
    after: int = 0


class Packing(Protocol):
    """Compresses the journals of ended responses, in short steps. A replay gives the same bytes at any moment."""

    async def pack(self, ended_before: float) -> Packed:
        """Pack some journals of responses that ended before this time; none while a node cannot read them."""

    async def release(self, ended_before: float) -> bool:
        """Delete some rows of packed journals. False when this was the last of them; on Postgres, they go in the
        transaction that packs them."""
        return False


class Heartbeat:
    """Beats for one worker, from a thread of its own, so that a busy loop does not lose its leases.

    The leases are the worker's own only while its last beat is valid: for the lease time, by the database's clock.
    While the storage is down, a beat is tried again. This is the heartbeat of a database with a single server, whose
    lock on the file shows that it lives.
    """

    async def start(self) -> None:
        """Return after the first beat: from then on the leases that this worker takes are its own."""

    def tick(self) -> None:
        """Show that the loop is alive. Without this for `HUNG_SECONDS` the beats stop until the next tick."""

    def is_beating(self) -> bool:
        """Return True if the last beat is valid, so that leases taken now are this worker's own. Costs nothing."""
        return True

    async def stop(self) -> None:
        """Withdraw the last beat: the worker is gone, and its leases are free for any worker at once."""


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    database: Statements
    packing: Packing
    bell: Bell
    heartbeat: Heartbeat
    probe: Callable[[], Awaitable[bool]]
    secret: bytes  # made once per database, and shared by its nodes
    shared: bool  # other nodes may use the same database
