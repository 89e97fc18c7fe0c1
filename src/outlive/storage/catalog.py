"""The catalog on either database: finds responses, conversations and their items, one owner at a time."""

from __future__ import annotations

from typing import Any, Protocol

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.ports.catalog import DatabaseState, NodeState, Page, Paging, Record, RunRecord
from outlive.ports.storage import LoadedItems
from outlive.storage.refusals import bad_cursor, item_not_found, response_not_found
from outlive.storage.rows import RUNNING, ConversationRow, to_conversation, to_run

MOST_ITEMS = (1 << 31) - 1
# Bytes of a page of items: a page of long items is shorter than was asked for, and says that there are more.
PAGE_BYTES = 16 * 1024 * 1024
# Bytes of the items that one request refers to.
MAX_REFERENCED = 64 * 1024 * 1024


class Reader(Protocol):
    """A database that reads by single statements, with numbered parameters after its own sign: `?1` or `$1`."""

    sign: str
    queries: dict[str, str]

    async def fetch(self, statement: str, *values: Any) -> list[Any]: ...

    def count_connections(self) -> dict[str, tuple[int, int]]:
        """Return by pool how many connections are in use, and how many there may be."""
        ...

    async def load(self, statement: str, *values: Any) -> list[Json]:
        """Decode the items that the statement's only column holds."""
        ...

    async def load_some(self, statement: str, *values: Any, most: int) -> LoadedItems:
        """Decode items likewise, in order, up to the one with which they have more bytes than `most`."""
        ...


class SqlCatalog:
    def __init__(self, database: Reader) -> None:
        self._database = database

    async def response(self, owner: str, response_id: str) -> Record:
        rows = await self._fetch("find_response", response_id, owner)
        if not rows:
            raise response_not_found(response_id)
        return Record(*rows[0])

    async def status(self, owner: str, response_id: str) -> str | None:
        rows = await self._fetch("find_status", response_id, owner)
        return rows[0][0] if rows else None

    async def responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None
    ) -> tuple[list[Record], bool]:
        query = ListQuery(self._database.sign, owner)
        if statuses and set(statuses) <= RUNNING:
            # Few run at a time: the leases name them, however many have ended.
            query.add("t.key IN (SELECT response FROM leases)")
        if statuses:
            query.add("t.status IN ({})", *statuses)
        if conversation is not None:
            query.add("t.conversation = {}", conversation)
        rows = await self._page(query, "find_response_key", "list_responses", paging)
        return [Record(*row) for row in rows[: paging.limit]], len(rows) > paging.limit

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._fetch("find_queue_places", response_ids)}

    async def runs(self, response_ids: list[str]) -> dict[str, RunRecord]:
        return {row[0]: to_run(row) for row in await self._fetch("find_runs", response_ids)}

    async def measure(self) -> DatabaseState:
        ((queued, oldest_at),) = await self._fetch("measure_queue")
        ((size,),) = await self._fetch("measure_bytes")
        nodes = [NodeState(*row) for row in await self._fetch("measure_nodes")]
        return DatabaseState(size, queued, oldest_at, nodes, self._database.count_connections())

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        rows = await self._fetch("find_input", response_id, owner)
        if not rows:
            raise response_not_found(response_id)
        thread, first, end = rows[0]
        return await self._items(thread, first, end, paging)

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        rows = await self._fetch("find_key", owner, kind, key)
        return (rows[0][0], rows[0][1]) if rows else None

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        return [row[0] for row in await self._fetch("find_unanswered", owner, digest, since)]

    async def conversation(self, owner: str, conversation_id: str) -> Json:
        return (await self._conversation(owner, conversation_id)).to_json()

    async def conversations(self, owner: str, paging: Paging) -> Page:
        query = ListQuery(self._database.sign, owner)
        rows = await self._page(query, "find_conversation_key", "list_conversations", paging)
        return Page([ConversationRow(*row).to_json() for row in rows[: paging.limit]], len(rows) > paging.limit)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        conversation = await self._conversation(owner, conversation_id)
        return await self._items(conversation.thread, 0, MOST_ITEMS, paging)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        conversation = await self._conversation(owner, conversation_id)
        items = await self._database.load(self._database.queries["read_item"], conversation.thread, item_id)
        if not items:
            raise item_not_found(item_id)
        return items[0]

    async def stored_items(self, owner: str, item_ids: list[str]) -> dict[str, Json]:
        loaded = await self._database.load_some(
            self._database.queries["find_items"], item_ids, owner, most=MAX_REFERENCED
        )
        if not loaded.whole:
            raise InvalidRequest(
                f"The items that are referred to have more than {MAX_REFERENCED:,} bytes.", param="input"
            )
        return {item["id"]: item for item in loaded.items}  # of several with one id the last, which is the newest

    async def _fetch(self, name: str, *values: Any) -> list[Any]:
        return await self._database.fetch(self._database.queries[name], *values)

    async def _conversation(self, owner: str, conversation_id: str) -> ConversationRow:
        rows = await self._fetch("find_conversation", conversation_id, owner)
        return to_conversation(rows[0] if rows else None, conversation_id)

    async def _page(self, query: ListQuery, find_key: str, select: str, paging: Paging) -> list[Any]:
        """Read a page of an owner's things, newest or oldest first, for keys grow with time. One row more than it holds
        shows whether there are more."""
        if paging.after is not None:
            rows = await self._fetch(find_key, paging.after, query.owner)
            if not rows:
                raise bad_cursor(paging.after)
            query.add("t.key < {}" if paging.order == "desc" else "t.key > {}", rows[0][0])
        where = query.where()
        limit = query.parameters(paging.limit + 1)
        sql = f"{self._database.queries[select]} WHERE {where} ORDER BY t.key {paging.order} LIMIT {limit}"
        return await self._database.fetch(sql, *query.values)

    async def _items(self, thread: int, first: int, end: int, paging: Paging) -> Page:
        if paging.after is not None:
            rows = await self._fetch("item_position", thread, paging.after)
            if not rows:
                raise bad_cursor(paging.after)
            position = rows[0][0]
            first, end = (first, min(end, position)) if paging.order == "desc" else (max(first, position + 1), end)
        sign = self._database.sign
        items, whole = await self._database.load_some(
            f"SELECT body FROM items WHERE thread = {sign}1 AND position >= {sign}2 AND position < {sign}3 "
            f"ORDER BY position {paging.order} LIMIT {sign}4",
            *(thread, first, end, paging.limit + 1),
            most=PAGE_BYTES,
        )
        return Page(items[: paging.limit], len(items) > paging.limit or not whole)


class ListQuery:
    """The conditions of a list of one owner's things, with their parameters."""

    def __init__(self, sign: str, owner: str) -> None:
        self.owner = owner
        self.values: list[Any] = []
        self._sign = sign
        self._conditions = ["NOT t.hidden"]
        self.add("t.owner = {}", owner)

    def add(self, condition: str, *values: Any) -> None:
        """Add a condition, with the parameters of these values in its braces."""
        self._conditions.append(condition.format(self.parameters(*values)))

    def parameters(self, *values: Any) -> str:
        first = len(self.values) + 1
        self.values += values
        return ", ".join(f"{self._sign}{number}" for number in range(first, first + len(values)))

    def where(self) -> str:
        return " AND ".join(self._conditions)
