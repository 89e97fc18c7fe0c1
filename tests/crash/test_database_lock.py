"""A database file can be used by one server only."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

from tests.crash.conftest import MakeServer
from tests.support.server import OutliveServer, free_port


def run_second(server: OutliveServer, database: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the same command on another port, and return its exit code and output."""
    command = [*server.command]
    command[command.index("--port") + 1] = str(free_port())
    if database is not None:
        command[command.index("--database") + 1] = f"sqlite:///{database}"
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=server.folder)


def test_a_second_server_on_the_same_file_refuses_to_start(server: OutliveServer) -> None:
    second = run_second(server)
    assert second.returncode == 2
    message = " ".join(second.stderr.split())
    assert "Another Outlive server is already running on" in message
    assert "--database" in message
    assert "Traceback" not in message
    assert server.is_ready(), "the first server still serves"


def test_a_symbolic_link_to_a_locked_file_is_refused(server: OutliveServer) -> None:
    link = server.folder / "link.db"
    link.symlink_to(server.database)
    second = run_second(server, link)
    assert second.returncode == 2
    assert "Another Outlive server" in second.stderr


def test_the_lock_of_a_killed_server_is_released(server: OutliveServer) -> None:
    server.restart()
    assert run_second(server).returncode == 2


def test_a_file_locked_by_another_program_is_refused_with_a_message(make_server: MakeServer) -> None:
    server = make_server().start()
    server.kill()
    holder = sqlite3.connect(server.database, isolation_level=None)
    try:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        refused = run_second(server)
    finally:
        holder.close()
    assert refused.returncode == 2
    assert "cannot be opened" in refused.stderr and "locked" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_is_no_database_is_refused_and_unchanged(make_server: MakeServer) -> None:
    server = make_server()
    server.folder.mkdir()
    content = b"not a database\n" * 100
    Path(server.database).write_bytes(content)
    refused = run_second(server)
    assert refused.returncode == 2
    assert "not a database" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert Path(server.database).read_bytes() == content
