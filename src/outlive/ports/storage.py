"""The ports of one database, and all of them together. Those that are single statements are the same for any database:
they are classes, over the port `Statements`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import astuple

from outlive.core.events import Json
from outlive.core.usage import DAY, Tokens, UsageSum
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.database import LoadedItems, Statements, Stored, lock_key
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


class StoredUsage(Stored):
    """Stores the usage of what is not stored itself, and what owners may do; reads all usage. Each is one statement."""

    async def add_sum(self, each: UsageSum) -> None:
        """Add usage of an owner, model, upstream and day to what is there."""
        group, counts = each.group, (each.attempts, each.tool_calls, each.responses)
        values = (group["owner"], group["model"].replace("\0", ""), group["upstream"], group["day"] * DAY)
        await self._database.change("add_usage_sum", *values, *astuple(each.tokens), *counts)

    async def sum_up(
        self, by: Sequence[str], start: float, end: float, owner: str | None = None, end_user: str | None = None
    ) -> list[UsageSum]:
        """Sum up the usage of a time by some of owner, end_user, model, upstream and day: of all, or of one owner."""
        rows = await self._database.fetch("sum_usage", start, end, owner, end_user, columns=", ".join(by))
        size = len(by)
        return [
            UsageSum(dict(zip(by, row[:size], strict=True)), Tokens(*row[size : size + 6]), *row[size + 6 :])
            for row in rows
        ]

    async def policies(self) -> dict[str, str]:
        """Return the policies of owners, as JSON."""
        return {row[0]: row[1] for row in await self._database.fetch("list_policies")}

    async def set_policy(self, owner: str, policy: str) -> None:
        await self._database.change("set_policy", owner, policy)

    async def count_minute(self, owner: str, minute: int, requests: int, tokens: int) -> tuple[int, int]:
        """Add requests and tokens to an owner's minute, and return those of all nodes. Only where nodes share it."""
        ((all_requests, all_tokens),) = await self._database.change("count_minute", owner, minute, requests, tokens)
        return all_requests, all_tokens

    async def share_running(self, owner: str, worker: str, held: int, wanted: int, most: int) -> tuple[int, bool]:
        """Set how many runs of an owner that are not stored a worker holds, and add as many of those that it wants as
        all nodes together may run. Returns how many were added, and whether responses of the owner are queued. Only
        where nodes share it."""
        lock = lock_key("running", owner)  # the one of admissions and claims
        ((added, waits),) = await self._database.change("share_running", owner, worker, held, wanted, most, lock)
        return added, waits

    async def find_running(self, worker: str) -> dict[str, int]:
        """Return what `share_running` has set for a worker, by owner. Only where nodes share it."""
        return {row[0]: row[1] for row in await self._database.fetch("find_running_unstored", worker)}


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
        """Delete some rows of packed journals. False when this was the last of them."""


class Heartbeat(Protocol):
    """Beats for one worker, from a thread of its own, so that a busy loop does not lose its leases.

    The leases are the worker's own only while its last beat is valid: for the lease time, by the database's clock.
    While the storage is down, a beat is tried again. The defaults are those of a database with a single server, whose
    lock on the file shows that it lives.
    """

    async def start(self) -> None:
        """Return after the first beat: from then on the leases that this worker takes are its own."""
        return

    def tick(self) -> None:
        """Show that the loop is alive. Without this for `HUNG_SECONDS` the beats stop until the next tick."""
        return

    def is_beating(self) -> bool:
        """Return True if the last beat is valid, so that leases taken now are this worker's own. Costs nothing."""
        return True

    async def stop(self) -> None:
        """Withdraw the last beat: the worker is gone, and its leases are free for any worker at once."""
        return


class NoHeartbeat(Heartbeat):
    """The heartbeat of a database with a single server."""


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    usage: StoredUsage
    database: Statements
    packing: Packing
    bell: Bell
    heartbeat: Heartbeat
    probe: Callable[[], Awaitable[bool]]
    secret: bytes  # made once per database, and shared by its nodes
    shared: bool  # other nodes may use the same database
