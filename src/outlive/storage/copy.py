"""Copies everything from one database to another, and checks that every response replays the same from both."""

import contextlib
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from outlive.config.database_url import check, is_shared, path_of, show
from outlive.core.errors import NotFound, OutliveError, SettingsError
from outlive.ports.catalog import Catalog, Paging
from outlive.ports.journal import Journal
from outlive.storage.sqlite.archive import SqliteArchive
from outlive.storage.sqlite.connection import SqliteDatabase, check_file
from outlive.storage.sqlite.journal import SqliteJournal
from outlive.storage.tables import TABLES

if TYPE_CHECKING:
    from outlive.storage.postgres.archive import PostgresArchive

PAGE_BYTES = 1024 * 1024
PAGE_ITEMS = 100

Archive: TypeAlias = "SqliteArchive | PostgresArchive"
Report = Callable[[str], None]  # called with each line of progress


class CopyError(OutliveError):
    """The copy differs from its source."""


class Side(msgspec.Struct, frozen=True):
    """One side of a copy."""

    archive: Archive
    journal: Journal
    catalog: Catalog


async def copy(source_url: str, target_url: str, report: Report) -> tuple[int, int]:
    """Copy into an empty database, in one transaction. Returns how many responses and conversations clients see, each
    replayed from both sides and found the same. Raises SettingsError or CopyError."""
    check(source_url)
    check(target_url)
    if not is_shared(source_url) and not is_shared(target_url):
        raise SettingsError("Both are SQLite files: use `outlive backup` and `outlive restore`.")
    if not is_shared(source_url):
        check_file(path_of(source_url))
    async with _open(source_url) as source, _open(target_url) as target:
        visible = await _move(source.archive, target.archive, target_url, report)
    responses, conversations = visible["responses"], visible["conversations"]
    # The comparison reads through the ports that serve clients.
    async with _open(source_url) as source, _open(target_url) as target:
        report(f"comparing {len(responses)} responses and {len(conversations)} conversations")
        for kind, things in (("Response", responses), ("Conversation", conversations)):
            for owner, id_ in things:
                if await _hash(source, kind, owner, id_) != await _hash(target, kind, owner, id_):
                    raise CopyError(f"{kind} {id_} did not arrive as it was sent.")
    return len(responses), len(conversations)


async def _move(source: Archive, target: Archive, target_url: str, report: Report) -> dict[str, list[tuple[str, str]]]:
    """Copy all tables. Returns the owners and ids of the responses and of the conversations that clients see."""
    for table in TABLES:
        if table != "secrets" and await target.count(table):
            raise SettingsError(f"{show(target_url)} is not empty; give one that is.")
    visible: dict[str, list[tuple[str, str]]] = {"responses": [], "conversations": []}
    for table, columns in TABLES.items():
        moved = 0
        async for rows in source.read(table):
            await target.write(table, rows)
            moved += len(rows)
            if table in visible:
                owner, id_, hidden = map(columns.index, ("owner", "id", "hidden"))
                visible[table] += [(row[owner], row[id_]) for row in rows if not row[hidden]]
        report(f"{moved} {table}")
    await target.commit()
    return visible


async def _hash(side: Side, kind: str, owner: str, thing_id: str) -> bytes:
    """Hash a response with its input and its frames, or a conversation with its items; no bytes where there is none."""
    catalog, is_response = side.catalog, kind == "Response"
    find, list_items = (catalog.response, catalog.input_items) if is_response else (catalog.conversation, catalog.items)
    last = -1
    try:
        hash_ = sha256(msgspec.json.encode(await find(owner, thing_id)))
        page = await list_items(owner, thing_id, Paging(None, PAGE_ITEMS, "asc"))
        hash_.update(msgspec.json.encode(page.data))
        while page.has_more:
            page = await list_items(owner, thing_id, Paging(page.data[-1]["id"], PAGE_ITEMS, "asc"))
            hash_.update(msgspec.json.encode(page.data))
        while is_response and (read := await side.journal.read(thing_id, last, PAGE_BYTES)) is not None and read.frames:
            hash_.update(read.frames)
            last = read.last
    except NotFound:
        return b""
    return hash_.digest()


@contextlib.asynccontextmanager
async def _open(url: str) -> AsyncIterator[Side]:
    async with contextlib.AsyncExitStack() as stack:
        if is_shared(url):
            # Its driver is an extra, which a server on SQLite does not need.
            from outlive.storage.postgres.archive import PostgresArchive
            from outlive.storage.postgres.connection import PostgresDatabase
            from outlive.storage.postgres.journal import PostgresJournal

            server = await PostgresDatabase.open(url)
            stack.push_async_callback(server.close)
            snapshot = await PostgresArchive.open(url)
            stack.push_async_callback(snapshot.close)
            if nodes := await snapshot.nodes():
                raise SettingsError(f"{nodes} nodes are at work on {show(url)}; stop them first.")
            yield Side(snapshot, PostgresJournal(server), Catalog(server))
        else:
            database = SqliteDatabase(str(path_of(url)))  # migrates its schema, and keeps servers out
            stack.push_async_callback(database.close)
            archive = SqliteArchive(database.path)
            stack.push_async_callback(archive.close)
            yield Side(archive, SqliteJournal(database), Catalog(database))
