"""The catalog: finds responses, conversations and their items, one by one and in pages, one owner at a time."""

from typing import Any, NamedTuple

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.owners import add_owner, join
from outlive.ports.database import Database, Statements, Stored, Transaction, decode, encode
from outlive.ports.ledger import Checkpoint
from outlive.ports.refusals import bad_cursor, conversation_not_found, item_not_found, response_not_found

RUNNING = frozenset({"queued", "in_progress"})
MOST_ITEMS = (1 << 31) - 1
# Bytes of a page of items: a page of long items is shorter than was asked for, and says that there are more.
PAGE_BYTES = 16 * 1024 * 1024
# Bytes of the items that one request refers to.
MAX_REFERENCED = 64 * 1024 * 1024
# Rows that one statement of a filtered list reads.
PIECE_ROWS = 2000
MAX_KEY = (1 << 63) - 1
BEYOND = {"desc": "t.key < {}", "asc": "t.key > {}"}
# Seconds by which the clock may have been wrong: keys grow with time, but for that.
CLOCK_TOLERANCE = 86_400
# Unpacked responses that are counted: reading more of their index would take long.
MOST_UNPACKED = 10_000


class Record(msgspec.Struct, frozen=True):
    """The part of a stored response that readers need."""

    response_id: str
    status: str
    created_at: float
    snapshot: bytes | None  # the final object; None while it runs, and in lists where it is long
    owner: str = ""  # in lists


class RunRecord(msgspec.Struct, frozen=True):
    """The nodes that ran a response, and its extent."""

    created_at: float
    ended_at: float | None
    events: int | None  # None where only the node that runs it knows
    taken: list[tuple[float, str, int]]  # when, by which node, and 1 where it counted as an attempt
    node: str | None  # holds its lease
    attempts: int | None  # as the lease counts them
    resumed_at: list[int]  # so far; empty once it has ended


class Page(msgspec.Struct, frozen=True):
    """One page of a list, in the order asked for."""

    data: list[Json]
    has_more: bool


class Paging(msgspec.Struct, frozen=True):
    after: str | None = None
    limit: int = 20
    order: str = "desc"
    wide: bool = False  # a list for admins: of an owner and its end users, or of all owners where the name is empty


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a list, all of which hold for each of its elements."""

    statuses: list[str] = []  # any of these; none: all
    conversation: str | None = None
    model: str | None = None  # as the request named it
    metadata: dict[str, str] = {}
    created_after: int | None = None  # unix seconds; compared with `created_at` as it is shown
    created_before: int | None = None

    @property
    def scans(self) -> bool:
        """True if some of it is found in no index."""
        return bool(self.metadata) or {self.model, self.created_after, self.created_before} != {None}


NO_FILTERS = Filters()


class NodeState(msgspec.Struct, frozen=True):
    """One node of a database: its leases, and the seconds until its last heartbeat expires (negative: it is dead)."""

    name: str
    leases: int
    expires_in: float | None  # None: a single server has no heartbeat


class DatabaseState(msgspec.Struct, frozen=True):
    """The size of a database, its queue, its webhooks that wait, its nodes, this node's connections to it, and its
    ended responses that are not packed."""

    size: int  # bytes
    queued: int
    oldest_queued_at: float | None  # unix seconds
    nodes: list[NodeState]
    connections: dict[str, tuple[int, int]]  # by pool: in use, and at most
    webhooks: int  # deliveries of which another attempt will be made
    oldest_webhook_at: float | None
    unpacked: int  # at most MOST_UNPACKED
    oldest_unpacked_at: float | None


class ConversationRow(NamedTuple):
    id: str
    metadata: bytes
    created_at: float
    key: int
    thread: int
    running: str | None  # id of the response that holds its lock ...
    running_first: int | None = None  # ... and the position of that response's first item
    owner: str = ""  # in lists

    def to_json(self) -> Json:
        created_at, metadata = int(self.created_at), decode(self.metadata)
        return {"id": self.id, "object": "conversation", "created_at": created_at, "metadata": metadata}


async def find_conversation(db: Statements | Transaction, owner: str, conversation_id: str) -> ConversationRow:
    rows = await db.fetch("find_conversation", conversation_id, owner)
    if not rows:
        raise conversation_not_found(conversation_id)
    return ConversationRow(*rows[0])


class About(msgspec.Struct):
    """The content that lists are filtered by."""

    model: str = ""
    metadata: dict[str, str] = {}


def has_content(kind: str, raw: bytes, filters: Filters) -> bool:
    """Return True if a row has the model and the metadata that were asked for."""
    about = msgspec.json.decode(raw if kind == "response" else b'{"metadata":%b}' % raw, type=About)
    return filters.model in (None, about.model) and filters.metadata.items() <= about.metadata.items()


def is_past(times: list[float], order: str, filters: Filters) -> bool:
    """Return True if rows of these times, and all that follow them, lie outside the time that was asked for."""
    if order == "desc":
        return filters.created_after is not None and max(times) < filters.created_after - CLOCK_TOLERANCE
    return filters.created_before is not None and min(times) > filters.created_before + CLOCK_TOLERANCE


class ListQuery:
    """The conditions of a list of one owner's things, with their parameters; `wide` as in `Paging`."""

    def __init__(self, sign: str, owner: str, wide: bool) -> None:
        self.owner = owner
        self.values: list[Any] = []
        self._sign = sign
        self._conditions = ["NOT t.hidden"]
        if not wide:
            self.add("t.owner = {}", owner)
        elif owner:  # by itself, or followed by the separator
            self.add(f"substr(t.owner, 1, {len(owner) + 1}) IN ({{}})", owner, join(owner, ""))

    def add(self, condition: str, *values: Any) -> None:
        """Add a condition, with the parameters of these values in its braces."""
        self._conditions.append(condition.format(self.parameters(*values)))

    def parameters(self, *values: Any) -> str:
        first = len(self.values) + 1
        self.values += values
        return ", ".join(f"{self._sign}{number}" for number in range(first, first + len(values)))

    def match(self, filters: Filters, contains: str) -> str:
        """Return the condition that a row passes the filters, as far as its bytes and its times show."""
        conditions = ["1 = 1"]
        wanted = [{"model": filters.model}] if filters.model is not None else []
        for pair in [*wanted, *({name: value} for name, value in filters.metadata.items())]:
            conditions.append(contains.format(self.parameters(encode(pair)[1:-1])))
        if filters.statuses:
            conditions.append(f"t.status IN ({self.parameters(*filters.statuses)})")
        if filters.created_after is not None:
            conditions.append(f"t.created_at >= {self.parameters(float(filters.created_after) + 1)}")
        if filters.created_before is not None:
            conditions.append(f"t.created_at < {self.parameters(float(filters.created_before))}")
        return f"({' AND '.join(conditions)})"

    def where(self) -> str:
        return " AND ".join(self._conditions)


class Catalog(Stored[Database]):
    """Every method answers for one owner alone: things of another owner are NotFound."""

    async def response(self, owner: str, response_id: str) -> Record:
        rows = await self._database.fetch("find_response", response_id, owner)
        if not rows:
            raise response_not_found(response_id)
        return Record(*rows[0])

    async def status(self, owner: str, response_id: str) -> str | None:
        """Return the status of a response; None when it does not exist."""
        rows = await self._database.fetch("find_status", response_id, owner)
        return rows[0][0] if rows else None

    async def responses(self, owner: str, paging: Paging, filters: Filters) -> tuple[list[Record], bool]:
        query = ListQuery(self._database.sign, owner, paging.wide)
        if filters.statuses and set(filters.statuses) <= RUNNING:
            # Few run at a time: the leases name them, however many have ended.
            query.add("t.key IN (SELECT response FROM leases)")
        if filters.statuses and not filters.scans:
            query.add("t.status IN ({})", *filters.statuses)
        if filters.conversation is not None:
            query.add("t.conversation = {}", filters.conversation)
        rows = await self._page(query, "response", paging, filters)
        return [Record(*row) for row in rows[: paging.limit]], len(rows) > paging.limit

    async def find_owner(self, thing_id: str) -> str | None:
        """Return the owner of a response or conversation, for admins."""
        rows = await self._database.fetch("find_owner", thing_id)
        return rows[0][0] if rows else None

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        """Return the places in the queue (1: the next to be taken) of those of these responses that are queued."""
        return {row[0]: row[1] for row in await self._database.fetch("find_queue_places", response_ids)}

    async def runs(self, response_ids: list[str]) -> dict[str, RunRecord]:
        """Return the nodes and the extent of those of these responses that exist."""
        found = {}
        rows = await self._database.fetch("find_runs", response_ids)
        for response_id, created_at, ended_at, events, runs, node, attempts, checkpoint in rows:
            taken = [(float(at), by, counted) for at, by, counted in decode(f"[{runs or ''}]")]
            resumed_at = msgspec.json.decode(checkpoint, type=Checkpoint).resumed_at if checkpoint is not None else []
            found[response_id] = RunRecord(created_at, ended_at, events, taken, node, attempts, resumed_at)
        return found

    async def measure(self) -> DatabaseState:
        """Return the size of the database and of the queue, and the nodes that use it."""
        ((queued, oldest_at),) = await self._database.fetch("measure_queue")
        ((size,),) = await self._database.fetch("measure_bytes")
        nodes = [NodeState(*row) for row in await self._database.fetch("measure_nodes")]
        ((webhooks, webhook_at),) = await self._database.fetch("measure_webhooks")
        ((unpacked, unpacked_at),) = await self._database.fetch("measure_unpacked", MOST_UNPACKED)
        connections = self._database.count_connections()
        return DatabaseState(size, queued, oldest_at, nodes, connections, webhooks, webhook_at, unpacked, unpacked_at)

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        rows = await self._database.fetch("find_input", response_id, owner)
        if not rows:
            raise response_not_found(response_id)
        thread, first, end = rows[0]
        return await self._items(thread, first, end, paging)

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        """Return the digest and the target that an Idempotency-Key was first used for."""
        rows = await self._database.fetch("find_key", owner, kind, key)
        return (rows[0][0], rows[0][1]) if rows else None

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        """Find responses to the same body whose creating connection has not had its answer, newest first."""
        return [row[0] for row in await self._database.fetch("find_unanswered", owner, digest, since)]

    async def conversation(self, owner: str, conversation_id: str) -> Json:
        return (await find_conversation(self._database, owner, conversation_id)).to_json()

    async def conversations(self, owner: str, paging: Paging, filters: Filters = NO_FILTERS) -> Page:
        """List conversations by `metadata` and the time of their creation."""
        query = ListQuery(self._database.sign, owner, paging.wide)
        rows = await self._page(query, "conversation", paging, filters)
        found = [ConversationRow(*row) for row in rows[: paging.limit]]
        data = [add_owner(row.to_json(), row.owner) if paging.wide else row.to_json() for row in found]
        return Page(data, len(rows) > paging.limit)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        conversation = await find_conversation(self._database, owner, conversation_id)
        return await self._items(conversation.thread, 0, MOST_ITEMS, paging)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        conversation = await find_conversation(self._database, owner, conversation_id)
        items = await self._database.load("read_item", conversation.thread, item_id)
        if not items:
            raise item_not_found(item_id)
        return items[0]

    async def stored_items(self, owner: str, item_ids: list[str]) -> dict[str, Json]:
        """Find items by their ids in any response or conversation; ids of none are left out."""
        loaded = await self._database.load_some("find_items", item_ids, owner, most=MAX_REFERENCED)
        if not loaded.whole:
            message = f"The items that are referred to have more than {MAX_REFERENCED:,} bytes."
            raise InvalidRequest(message, param="input")
        return {item["id"]: item for item in loaded.items}  # of several with one id the last, which is the newest

    async def _page(self, query: ListQuery, kind: str, paging: Paging, filters: Filters) -> list[Any]:
        """Read a page of an owner's things by their keys, which grow with time, and one row more if there is one."""
        if paging.after is not None:
            owner = await self.find_owner(paging.after) or "" if paging.wide else query.owner
            key = await self._find_cursor(paging.after, f"find_{kind}_key", paging.after, owner)
            query.add(BEYOND[paging.order], key)
        if filters.scans:
            keys = await self._scan(query, kind, paging, filters)
            query = ListQuery(self._database.sign, query.owner, paging.wide)
            query.add("t.key IN ({})" if keys else "1 = 0", *keys)
        where, limit = query.where(), query.parameters(paging.limit + 1)
        return await self._database.fetch(f"list_{kind}s", *query.values, where=where, order=paging.order, limit=limit)

    async def _find_cursor(self, after: str, statement: str, *values: Any) -> int:
        rows = await self._database.fetch(statement, *values)
        if not rows:
            raise bad_cursor(after)
        return int(rows[0][0])

    async def _scan(self, query: ListQuery, kind: str, paging: Paging, filters: Filters) -> list[int]:
        """Find the keys of the rows of a page, and of one more, by filters that no index serves: in pieces, so that no
        statement reads long. The statement looks for bytes in JSON, and what it finds is decoded and compared."""
        found: list[int] = []
        matches = query.match(filters, self._database.queries[f"{kind}_contains"])
        last = query.parameters(0 if paging.order == "asc" else MAX_KEY)
        where = f"{query.where()} AND {BEYOND[paging.order].format(last)}"
        parts = {"matches": matches, "where": where, "order": paging.order, "most": str(PIECE_ROWS)}
        while True:
            rows = await self._database.fetch(f"scan_{kind}s", *query.values, **parts)
            for key, _, matching, about in rows:
                if matching and about is None:  # of an older version: in its final object, or in its request
                    ((about,),) = await self._database.fetch("find_about", key)
                if matching and has_content(kind, about, filters):
                    found.append(key)
                    if len(found) > paging.limit:
                        return found
            if len(rows) < PIECE_ROWS or is_past([row[1] for row in rows], paging.order, filters):
                return found
            query.values[-1] = rows[-1][0]

    async def _items(self, thread: int, first: int, end: int, paging: Paging) -> Page:
        if paging.after is not None:
            position = await self._find_cursor(paging.after, "item_position", thread, paging.after)
            first, end = (first, min(end, position)) if paging.order == "desc" else (max(first, position + 1), end)
        span = (thread, first, end, paging.limit + 1)
        items, whole = await self._database.load_some("list_items", *span, most=PAGE_BYTES, order=paging.order)
        return Page(items[: paging.limit], len(items) > paging.limit or not whole)
