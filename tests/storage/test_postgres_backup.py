"""The commands of docs/how-to/back-up.md for Postgres, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.fixtures import upstream
from tests.support.http_client import text_of
from tests.support.postgres import PostgresServer, find_programs
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, say

__all__ = ["upstream"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "back-up.md"
ON_PAGE = "postgresql://outlive@db.internal/"
MOMENT = "2026-11-18 10:00:00+00"
PIECES = words(20)


def block(start: str, language: str = "sh") -> str:
    """Return the block of the page that begins with these words."""
    found = re.findall(rf"^```{language}\n({re.escape(start)}.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(found) == 1, start
    return str(found[0])


class Machine:
    """A Postgres that archives its log, and a second place to restore it to."""

    def __init__(self) -> None:
        self.restored = PostgresServer()
        self.archive = self.restored.folder / "backups"
        settings = dict(line.split(" = ", 1) for line in block("archive_mode", "").splitlines())
        settings = {name: self.place(value.strip("'")) for name, value in settings.items()}
        self.postgres = PostgresServer(settings=settings)
        self.as_postgres("mkdir -p /backups/wal")
        self.postgres.create()

    def place(self, text: str) -> str:
        """Replace the places on the page by those of the test."""
        text = text.replace("/backups", str(self.archive)).replace(
            "/var/lib/postgresql/restored", str(self.restored.data)
        )
        return text.replace(ON_PAGE, self.postgres.url("")) if hasattr(self, "postgres") else text

    def as_postgres(self, commands: str) -> None:
        """Run commands of the page as the user of Postgres."""
        done = subprocess.run(
            ["sh", "-ec", self.place(commands)],
            cwd=self.restored.folder,
            env={**os.environ, "PATH": f"{find_programs()}:{os.environ['PATH']}", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            **self.restored._as_owner(),
        )
        assert done.returncode == 0, done.stderr

    def remove(self) -> None:
        self.postgres.remove()
        self.restored.remove()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.remove()


@contextmanager
def serve(folder: Path, url: str, upstream: FakeUpstream) -> Iterator[OutliveServer]:
    with OutliveServer(folder, upstream.url, "--lease-seconds", "1", database_url=url) as server:
        yield server


def leave(server: OutliveServer, upstream: FakeUpstream) -> tuple[str, list[bytes], str]:
    """Leave an ended response and one in flight. Returns the first with its replay, and the second."""
    ended = server.client.create(upstream.model(say("kept"))).json()["id"]
    model = upstream.model([Gate()], stream_words(PIECES))
    begun = server.client.submit(model)
    upstream.wait_call(model)
    return ended, server.client.replay(ended), begun


def check(server: OutliveServer, ended: str, replay: list[bytes], begun: str) -> None:
    assert server.client.replay(ended) == replay
    assert text_of(server.client.wait_ended(begun)) == "".join(PIECES)


def test_a_dump_that_was_made_beside_a_node_is_restored(
    machine: Machine, tmp_path: Path, upstream: FakeUpstream
) -> None:
    machine.postgres.sql("CREATE DATABASE outlive")
    with serve(tmp_path / "first", machine.postgres.url("outlive"), upstream) as server:
        left = leave(server, upstream)
        machine.as_postgres(block("pg_dump"))
    machine.as_postgres(block("createdb"))
    with serve(tmp_path / "second", machine.postgres.url("restored"), upstream) as server:
        check(server, *left)


def test_a_base_backup_is_restored_to_the_moment_before_an_accident(
    machine: Machine, tmp_path: Path, upstream: FakeUpstream
) -> None:
    machine.postgres.sql("CREATE DATABASE accident")
    with ExitStack() as stack:
        server = stack.enter_context(serve(tmp_path / "first", machine.postgres.url("accident"), upstream))
        machine.as_postgres(block("pg_basebackup"))
        left = leave(server, upstream)
        moment = machine.postgres.sql("SELECT clock_timestamp()")
        late = server.client.create(upstream.model(say("late"))).json()["id"]
    machine.postgres.sql("DROP SCHEMA outlive CASCADE", "accident")
    machine.postgres.sql("SELECT pg_switch_wal()")
    machine.postgres.stop()  # which archives what is left
    machine.as_postgres(block("cp -a").replace(MOMENT, moment))
    machine.restored.start()
    machine.restored.wait_writable()
    with serve(tmp_path / "second", machine.restored.url("accident"), upstream) as server:
        check(server, *left)
        assert server.client.get(f"/v1/responses/{late}").status == 404
