"""`outlive backup` beside a running server, and `outlive restore`."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outlive.storage.sqlite import backup
from outlive.storage.sqlite.connection import SqliteDatabase
from tests.cli.conftest import Run
from tests.cli.test_storage import check, fill, run_on
from tests.conformance.storages import open_sqlite
from tests.support.fixtures import upstream
from tests.support.http_client import text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, ending, say, text

__all__ = ["upstream"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "back-up.md"
KEY = "a-key-of-more-than-thirty-two-characters"


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, Any]:
    """Return a database with something of every kind, and what is in it."""
    file = tmp_path / "outlive.db"
    return file, run_on(lambda: open_sqlite(file), fill)


def url(file: Path) -> str:
    return f"sqlite:///{file}"


def check_restored(file: Path, made: Any) -> None:
    """Check that everything is there, as the start of a server finds it: no worker holds a lease any more."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE leases SET worker = NULL")
    run_on(lambda: open_sqlite(file), lambda harness: check(harness, made), 1000)


def outlive(*words: str | Path) -> str:
    """Run a command as a process of its own, and return its output."""
    done = subprocess.run([sys.executable, "-m", "outlive", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_backup_of_a_running_server_is_restored_and_its_runs_are_recovered(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    gate, pieces = Gate(), words(20)
    invisible = upstream.model([Gate()], stream_words(pieces))
    visible = upstream.model([text("half"), gate, *ending()])
    with OutliveServer(tmp_path / "first", upstream.url) as server:
        ended = server.client.create(upstream.model(say("kept"))).json()
        replay = server.client.replay(ended["id"])
        begun = server.client.submit(invisible)
        upstream.wait_call(invisible)
        with server.client.stream(visible) as stream:
            stream.read_delta("half")
            seen = list(stream.frames)
            out = outlive("backup", tmp_path / "backup.db", "--database", server.database_url)
            gate.open()
            stream.read_all()
            assert stream.complete
    assert "3 responses replay the same" in out and f"There is no key file {server.database}.key" in out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backup.db", "first"]
    restored = OutliveServer(tmp_path / "second", upstream.url)
    restored.folder.mkdir()
    out = outlive("restore", tmp_path / "backup.db", "--database", restored.database_url)
    assert "3 responses replay as when it was made" in out
    with restored:
        assert restored.client.replay(ended["id"]) == replay
        assert restored.client.wait_ended(stream.id)["incomplete_details"]["reason"] == "interrupted"
        assert restored.client.replay(stream.id)[: len(seen)] == seen
        assert text_of(restored.client.wait_ended(begun)) == "".join(pieces)
        assert "write-ahead log" not in restored.log


def test_the_commands_of_the_page_work_one_after_the_other(run: Run, filled: tuple[Path, Any]) -> None:
    section = PAGE.read_text().partition("## A SQLite file")[2].partition("## Postgres")[0]
    lines = re.findall(r"^outlive (.*)$", section, re.M)
    assert len(lines) == 3
    filled[0].with_name("outlive.db.key").write_text(KEY)
    for line in lines:
        done = run(*line.split())
        assert done.exit_code == 0, done.output
    assert Path("outlive-restored.db.key").read_text() == KEY


def test_a_restored_database_has_everything_and_its_runs_continue(run: Run, filled: tuple[Path, Any]) -> None:
    file, made = filled
    copy, restored = file.with_name("copy.db"), file.with_name("restored.db")
    assert run("backup", str(copy), "--database", url(file)).exit_code == 0
    done = run("restore", str(copy), "--database", url(restored))
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect(restored)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'backup'").fetchone() == (0,)
    check_restored(restored, made)


def test_commits_between_the_steps_are_neither_delayed_nor_in_the_backup(
    filled: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = filled
    with closing(sqlite3.connect(file, isolation_level=None)) as server:
        server.execute("PRAGMA busy_timeout = 0")
        steps = 0

        def commit(_: float) -> None:
            nonlocal steps
            steps += 1
            server.execute("INSERT INTO unanswered VALUES (?, 'ann', x'00', 1.0)", (1000 + steps,))

        monkeypatch.setattr(backup, "STEP_PAGES", 4)
        monkeypatch.setattr(backup, "time", type("Clock", (), {"sleep": staticmethod(commit)}))
        (pages,) = server.execute("PRAGMA page_count").fetchone()
        before = server.execute("SELECT count(*) FROM unanswered").fetchone()
        backup.back_up(file, file.with_name("copy.db"))
        assert steps == -(-pages // 4)
        assert server.execute("SELECT count(*) FROM unanswered").fetchone() == (before[0] + steps,)
    with closing(sqlite3.connect(file.with_name("copy.db"))) as copy:
        assert copy.execute("SELECT count(*) FROM unanswered").fetchone() == before


def test_a_backup_after_a_kill_leaves_the_log_to_the_next_start(tmp_path: Path, upstream: FakeUpstream) -> None:
    with OutliveServer(tmp_path, upstream.url) as server:
        kept = server.client.create(upstream.model(say("kept"))).json()
        server.kill()
        log = tmp_path / "outlive.db-wal"
        before = log.read_bytes()
        outlive("backup", tmp_path / "copy.db", "--database", server.database_url)
        assert log.read_bytes() == before and before
        server.start()
        assert server.client.retrieve(kept["id"])["status"] == "completed"
        assert "write-ahead log" not in server.log


# -- damage


def damage(statement: str) -> Callable[[Path], None]:
    def act(copy: Path) -> None:
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            assert db.execute(statement).rowcount

    return act


LONG = "(SELECT response FROM events WHERE first = 5)"  # which is running, and has several rows


def truncate(copy: Path) -> None:
    os.truncate(copy, copy.stat().st_size - 8192)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            damage(f"UPDATE events SET frames = CAST(replace(frames, 'd', 'D') AS BLOB) WHERE response = {LONG}"),
            "is not as it was",
        ),
        (damage(f"DELETE FROM events WHERE first = 2 AND response = {LONG}"), "lacks the events"),
        (
            damage(f"DELETE FROM events WHERE key = (SELECT max(key) FROM events WHERE response = {LONG})"),
            "is not as it was",
        ),
        (damage("DELETE FROM responses WHERE key = (SELECT max(key) FROM responses WHERE hidden = 0)"), "missing"),
        (damage("UPDATE items SET body = x'00' WHERE position = 0"), "table items"),
        (truncate, "malformed"),
    ],
    ids=["changed event", "gap", "no last event", "lost response", "changed item", "truncated"],
)
def test_a_damaged_backup_is_not_restored(
    run: Run, filled: tuple[Path, Any], harm: Callable[[Path], None], sentence: str
) -> None:
    file, _ = filled
    copy = file.with_name("copy.db")
    run("backup", str(copy), "--database", url(file))
    harm(copy)
    before = file.read_bytes()
    done = run("restore", str(copy), "--database", url(file), "--force")
    assert done.exit_code == 1
    assert sentence in done.output
    assert file.read_bytes() == before
    done = run("restore", str(copy), "--database", url(file.with_name("new.db")))
    assert done.exit_code == 1
    assert not file.with_name("new.db").exists()
    assert not list(file.parent.glob("*.partial*"))


def test_a_copy_that_another_program_made_is_restored(run: Run, filled: tuple[Path, Any]) -> None:
    file, made = filled
    copy, restored = file.with_name("copy.db"), file.with_name("restored.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    assert run("restore", str(copy), "--database", url(restored)).exit_code == 0
    check_restored(restored, made)


# -- refusals


def refused(run: Run, *words: str | Path) -> str:
    done = run(*map(str, words))
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def test_existing_files_are_replaced_by_force_only(run: Run, filled: tuple[Path, Any]) -> None:
    file, _ = filled
    copy = file.with_name("copy.db")
    copy.write_text("something else")
    assert f"{copy} exists; give --force" in refused(run, "backup", copy, "--database", url(file))
    assert copy.read_text() == "something else"
    assert run("backup", str(copy), "--database", url(file), "--force").exit_code == 0
    assert f"{file} exists; give --force" in refused(run, "restore", copy, "--database", url(file))
    # What was committed since is gone, also where it is in the log of a server that was killed.
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DELETE FROM responses")
        for name in ("-wal", "-shm"):
            Path(f"{file}{name}.kept").write_bytes(Path(f"{file}{name}").read_bytes())
    for name in ("-wal", "-shm"):
        Path(f"{file}{name}.kept").rename(f"{file}{name}")
    assert run("restore", str(copy), "--database", url(file), "--force").exit_code == 0
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT count(*) FROM responses").fetchone()[0] > 5


def test_a_running_server_keeps_its_database(run: Run, filled: tuple[Path, Any], tmp_path: Path) -> None:
    file, _ = filled
    copy = tmp_path / "copy.db"
    run("backup", str(copy), "--database", url(file))

    async def go() -> None:
        database = SqliteDatabase(str(file))
        try:
            done = await asyncio.to_thread(refused, run, "restore", copy, "--database", url(file), "--force")
            assert "already running" in done
        finally:
            await database.close()

    asyncio.run(go())


def test_what_is_no_database_of_this_version_is_refused(run: Run, filled: tuple[Path, Any], tmp_path: Path) -> None:
    file, _ = filled
    assert "There is no database" in refused(run, "backup", tmp_path / "b", "--database", url(tmp_path / "none.db"))
    assert "There is no backup" in refused(run, "restore", tmp_path / "b", "--database", url(tmp_path / "none.db"))
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE notes (text)")
    assert "not a database of Outlive" in refused(run, "restore", other, "--database", url(tmp_path / "none.db"))
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 99")
    assert "newer Outlive" in refused(run, "backup", tmp_path / "b", "--database", url(file))
    (tmp_path / "text").write_text("not a database")
    done = run("restore", str(tmp_path / "text"), "--database", url(tmp_path / "none.db"))
    assert (done.exit_code, "file is not a database" in done.output) == (1, True)
    done = run("backup", str(tmp_path / "missing" / "b"), "--database", url(other))
    assert (done.exit_code, "was not written: No such file or directory" in done.output) == (1, True)
    assert not (tmp_path / "none.db").exists()


# -- shrinking


def test_an_old_file_is_shrunk_and_shrinks_by_itself_from_then_on(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "outlive.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 0")  # writes the first page, without auto_vacuum
    made = run_on(lambda: open_sqlite(file), fill)
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (0,)
        db.execute("CREATE TABLE filling AS SELECT zeroblob(5000000)")
        db.execute("DROP TABLE filling")
    done = run("shrink", "--database", url(file))
    assert done.exit_code == 0, done.output
    assert "MB now" in done.output
    assert file.stat().st_size < 1_000_000
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    check_restored(file, made)


def test_what_cannot_be_shrunk_is_left_as_it_is(run: Run, filled: tuple[Path, Any], tmp_path: Path) -> None:
    file, made = filled
    assert "There is no database" in refused(run, "shrink", "--database", url(tmp_path / "none.db"))
    assert "docs/how-to" in refused(run, "shrink", "--database", "postgresql://outlive@127.0.0.1/outlive")

    async def go() -> None:
        database = SqliteDatabase(str(file))
        try:
            assert "already running" in await asyncio.to_thread(refused, run, "shrink", "--database", url(file))
        finally:
            await database.close()

    asyncio.run(go())
    check_restored(file, made)


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_postgres_is_left_to_its_own_programs(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "b").touch()
    said = refused(run, command, tmp_path / "b", "--database", "postgresql://outlive@127.0.0.1/outlive")
    assert "docs/how-to/back-up.md" in said


# -- the key


def test_the_key_file_is_named_or_copied_and_restored(run: Run, filled: tuple[Path, Any]) -> None:
    file, _ = filled
    copy, restored = file.with_name("copy.db"), file.with_name("restored.db")
    key, kept = file.with_name("outlive.db.key"), file.with_name("copy.db.key")
    key.write_text(KEY)
    assert f"Keep the key file {key} with it" in run("backup", str(copy), "--database", url(file)).output
    assert not kept.exists()
    done = run("backup", str(copy), "--database", url(file), "--with-key", "--force")
    assert f"The key file is in {kept}" in done.output
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == (KEY, 0o600)
    file.with_name("restored.db.key").write_text("another")
    assert "restored.db.key exists" in refused(run, "restore", copy, "--database", url(restored))
    assert run("restore", str(copy), "--database", url(restored), "--force").exit_code == 0
    assert file.with_name("restored.db.key").read_text() == KEY


def test_a_key_of_the_settings_is_to_be_kept_with_them(run: Run, filled: tuple[Path, Any]) -> None:
    file, _ = filled
    done = run("backup", str(file.with_name("b")), "--database", url(file), "--with-key", OUTLIVE_SEAL_KEY=KEY)
    assert "Keep the seal key of the settings" in done.output
