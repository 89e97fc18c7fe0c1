"""The one writer of a SQLite file: who goes first when much is to be written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from outlive.adapters.sqlite.connection import Database
from outlive.adapters.sqlite.writer import PORTION


def note(written: list[str], name: str) -> Callable[[sqlite3.Connection], None]:
    return lambda _: written.append(name)


def test_the_patient_are_written_in_portions_and_nobody_waits_for_all_of_them(tmp_path: Path) -> None:
    async def go() -> None:
        database = Database(str(tmp_path / "outlive.db"))
        written: list[str] = []
        ends = [database.write("close", note(written, f"end {n}"), patient=True) for n in range(5 * PORTION)]
        await ends[0]
        await database.write("admit", note(written, "beginning"))
        assert written.index("beginning") <= 2 * PORTION
        assert not ends[-1].done()
        await asyncio.gather(*ends)
        assert [name for name in written if name != "beginning"] == [f"end {n}" for n in range(5 * PORTION)]
        await database.close()

    asyncio.run(go())


def test_those_in_a_hurry_do_not_keep_the_patient_waiting_for_ever(tmp_path: Path) -> None:
    async def go() -> None:
        database = Database(str(tmp_path / "outlive.db"))
        written: list[str] = []
        end = database.write("close", note(written, "end"), patient=True)
        for n in range(3):
            await database.write("append", note(written, f"event {n}"))
        assert end.done()
        assert written.index("end") < written.index("event 2")
        await database.close()

    asyncio.run(go())


def test_closing_waits_for_everything_that_was_to_be_written(tmp_path: Path) -> None:
    async def go() -> None:
        database = Database(str(tmp_path / "outlive.db"))
        written: list[str] = []
        for n in range(3 * PORTION):
            database.write("close", note(written, f"end {n}"), patient=True)
            database.write("append", note(written, f"event {n}"))
        await database.close()
        assert len(written) == 6 * PORTION

    asyncio.run(go())
