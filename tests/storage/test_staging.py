"""Large inputs on SQLite: staged in pieces, read back whole, and erased without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from outlive.core.errors import ConversationLocked
from outlive.core.events import Json
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import parse_create
from outlive.core.requests.items import parse_items
from outlive.ports.catalog import Catalog, Paging
from outlive.ports.conversations import Conversations
from outlive.ports.ledger import Admission, Admitted, Closing, Entry
from outlive.ports.retention import Retention
from outlive.storage.sqlite import SQL
from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.storage.sqlite.journal import SqliteHistory
from outlive.storage.sqlite.ledger import SqliteLedger
from outlive.storage.sqlite.staging import ERASED_PIECES, PIECE_BYTES
from tests.support.scripting import CountingIds

IDS = CountingIds()
CANARY = "canary-in-staging"


def large_input() -> list[Json]:
    """Make items that begin and end within pieces, and one that spans several."""
    texts = [CANARY, "x" * (PIECE_BYTES - 200), CANARY + "y" * (3 * PIECE_BYTES) + CANARY, "ü" * 1000, CANARY]
    return [{"role": "user", "content": text} for text in texts]


async def admit(
    database: SqliteDatabase, response_id: str, conversation: str | None = None
) -> tuple[Admitted, list[Json]]:
    body = {"model": "m", "input": large_input(), "conversation": conversation}
    request = parse_create(body, IDS, Limits())
    admission = Admission(
        response_id=response_id,
        owner="local",
        at=1.0,
        request=request,
        status="in_progress",
        frames=b"event: response.created\ndata: {}\n\n",
        count=1,
        worker="w",
        size=1_000_000,
    )
    return await SqliteLedger(database).admit(admission), request.input


async def close(database: SqliteDatabase, admitted: Admitted) -> None:
    assert admitted.lease is not None
    entry = Entry(admitted.lease, 1, 1, 2.0, b"event: response.completed\ndata: {}\n\n")
    await SqliteLedger(database).close(Closing(entry, "completed", b"{}", [], True))


async def erase_all(retention: Retention) -> int:
    """Erase what was deleted. Returns the number of transactions."""
    transactions = 0
    while await retention.erase(10):
        transactions += 1
    return transactions


async def count(database: SqliteDatabase, table: str) -> int:
    rows: int = await database.read("count", lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    return rows


def run(path: Path, test: Callable[[SqliteDatabase], Awaitable[None]]) -> None:
    async def go() -> None:
        database = SqliteDatabase(str(path / "staging.db"))
        try:
            await test(database)
        finally:
            await database.close()

    asyncio.run(go())


def found_on_disk(path: Path) -> bool:
    return any(CANARY.encode() in file.read_bytes() for file in path.iterdir())


def test_a_large_input_is_read_back_whole(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        admitted, given = await admit(database, "resp_1")
        assert admitted.position is not None
        page = await Catalog(database).input_items("local", "resp_1", Paging(order="asc"))
        assert page.data == given
        loaded = await SqliteHistory(database).before(type(admitted.position)(admitted.position.thread, 99))
        assert loaded.items == given
        assert (await SqliteLedger(database).take_over("resp_1", "other")).request.input == given  # type: ignore[union-attr]

    run(tmp_path, test)


def test_a_refused_large_request_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        await Conversations(database).create("local", {"id": "conv_1", "metadata": {}}, [], 1.0, None)
        await admit(database, "resp_1", "conv_1")
        pieces = await count(database, "stash")
        with pytest.raises(ConversationLocked):
            await admit(database, "resp_2", "conv_1")
        assert await count(database, "stash") == pieces

    run(tmp_path, test)


def test_pieces_of_a_request_not_accepted_before_a_crash_are_dropped_at_start(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        await admit(database, "resp_1")
        kept = await count(database, "stash")
        await database.write(
            "test", lambda db: db.execute("INSERT INTO stash (holder, number, bytes) VALUES ('resp_2', 0, x'00')")
        )
        await SqliteLedger(database).free_dead_leases()
        assert await count(database, "stash") == kept

    run(tmp_path, test)


def test_a_deleted_response_erases_its_staged_pieces(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        admitted, _ = await admit(database, "resp_1")
        await close(database, admitted)
        await SqliteLedger(database).delete("local", "resp_1")
        retention = Retention(database)
        await erase_all(retention)
        await retention.scrub()
        assert await count(database, "stash") == await count(database, "holders") == 0
        assert not found_on_disk(tmp_path)

    run(tmp_path, test)


def test_a_deleted_conversation_erases_the_pieces_of_erased_responses(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        conversations, retention = Conversations(database), Retention(database)
        await conversations.create("local", {"id": "conv_1", "metadata": {}}, [], 1.0, None)
        admitted, given = await admit(database, "resp_1", "conv_1")
        await close(database, admitted)
        await SqliteLedger(database).delete("local", "resp_1")
        await erase_all(retention)
        page = await Catalog(database).items("local", "conv_1", Paging(order="asc"))
        assert page.data == given  # the conversation still has them
        await conversations.delete("local", "conv_1")
        await erase_all(retention)
        await retention.scrub()
        assert await count(database, "stash") == 0
        assert not found_on_disk(tmp_path)

    run(tmp_path, test)


def test_pieces_are_erased_few_at_a_time(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        admitted, _ = await admit(database, "resp_1")
        await close(database, admitted)
        rows = [("resp_1", 100 + n, b"piece") for n in range(3 * ERASED_PIECES)]
        await database.write("test", lambda db: db.executemany(SQL["add_piece"], rows))
        await SqliteLedger(database).delete("local", "resp_1")
        assert await erase_all(Retention(database)) == 5  # the response, and four times some pieces
        assert await count(database, "stash") == await count(database, "holders") == 0

    run(tmp_path, test)


def test_large_items_of_a_conversation_are_read_back_whole_and_erased_with_it(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        conversations, retention = Conversations(database), Retention(database)
        given = parse_items(large_input(), "items", IDS, Limits())
        await conversations.create("local", {"id": "conv_1", "metadata": {}}, given[:2], 1.0, None, large=True)
        assert await conversations.add_items("local", "conv_1", given[2:], 1.0, None, large=True) == given[2:]
        assert await count(database, "stash") > 0
        page = await Catalog(database).items("local", "conv_1", Paging(order="asc"))
        assert page.data == given
        await conversations.delete("local", "conv_1")
        await erase_all(retention)
        await retention.scrub()
        assert await count(database, "stash") == await count(database, "holders") == 0
        assert not found_on_disk(tmp_path)

    run(tmp_path, test)


def test_repeated_large_items_leave_no_second_copy(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        conversations = Conversations(database)
        given = parse_items(large_input(), "items", IDS, Limits())
        await conversations.create("local", {"id": "conv_1", "metadata": {}}, given, 1.0, None, large=True)
        pieces = await count(database, "stash")
        assert await conversations.add_items("local", "conv_1", given, 1.0, None, large=True) == given
        assert await count(database, "stash") == pieces

    run(tmp_path, test)


def test_a_deleted_staged_item_is_zeroed_and_the_others_stay(tmp_path: Path) -> None:
    async def test(database: SqliteDatabase) -> None:
        conversations, retention = Conversations(database), Retention(database)
        await conversations.create("local", {"id": "conv_1", "metadata": {}}, [], 1.0, None)
        admitted, given = await admit(database, "resp_1", "conv_1")
        await close(database, admitted)
        for item in (given[0], given[2], given[4]):
            await conversations.delete_item("local", "conv_1", item["id"])
        page = await Catalog(database).items("local", "conv_1", Paging(order="asc"))
        assert page.data == [given[1], given[3]]
        await retention.scrub()
        assert not found_on_disk(tmp_path)

    run(tmp_path, test)
