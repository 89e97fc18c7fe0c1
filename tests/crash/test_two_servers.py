"""One file, one server."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

from tests.crash.conftest import Serve
from tests.support.server import OutliveServer, free_port


def run_beside(server: OutliveServer, database: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same command on another port, which is expected to end by itself."""
    command = [*server.command]
    command[command.index("--port") + 1] = str(free_port())
    if database is not None:
        command[command.index("--database") + 1] = f"sqlite:///{database}"
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=server.folder)


def test_a_second_server_on_the_same_file_refuses_to_start(server: OutliveServer) -> None:
    second = run_beside(server)
    assert second.returncode == 2
    said = " ".join(second.stderr.split())
    assert "Another Outlive server is already running on" in said
    assert "--database" in said
    assert "Traceback" not in said
    assert server.is_ready(), "the first one is none the worse for it"


def test_another_name_for_the_same_file_is_no_way_around(server: OutliveServer) -> None:
    link = server.folder / "link.db"
    link.symlink_to(server.database)
    second = run_beside(server, link)
    assert second.returncode == 2
    assert "Another Outlive server" in second.stderr


def test_the_lock_of_a_killed_server_is_gone_with_it(server: OutliveServer) -> None:
    server.restart()
    assert run_beside(server).returncode == 2


def test_a_file_that_another_program_holds_is_refused_with_a_sentence(make_server: Serve) -> None:
    server = make_server().start()
    server.kill()
    holder = sqlite3.connect(server.database, isolation_level=None)
    try:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        refused = run_beside(server)
    finally:
        holder.close()
    assert refused.returncode == 2
    assert "cannot be opened" in refused.stderr and "locked" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_is_no_database_is_refused_and_left_alone(make_server: Serve) -> None:
    server = make_server()
    server.folder.mkdir()
    precious = b"my only copy of a novel\n" * 100
    Path(server.database).write_bytes(precious)
    refused = run_beside(server)
    assert refused.returncode == 2
    assert "not a database" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert Path(server.database).read_bytes() == precious
