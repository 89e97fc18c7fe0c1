"""A full disk, a locked or a read-only database: clear errors, paused streams, no corruption, and recovery."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.crash.conftest import MakeServer
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Step, say, text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")

PIECES = words(40)

Fault = Callable[[OutliveServer], AbstractContextManager[None]]


@contextmanager
def writes_fail(server: OutliveServer) -> Iterator[None]:
    """Let every write of the process to a file fail."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        if server.is_running:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def disk_full(server: OutliveServer) -> Iterator[None]:
    """Fill the disk of the database to the last byte."""
    filler = server.database.with_name("filler")
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def locked(server: OutliveServer) -> Iterator[None]:
    """Lock the database as another program does."""
    holder = sqlite3.connect(server.database, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        holder.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "outlive", str(folder)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("a full disk needs a mount of its own, which the kernel does not allow this user")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("fault", [writes_fail, disk_full, locked])
def test_a_storage_fault_refuses_new_responses_and_pauses_running_ones(
    fault: Fault, upstream: FakeUpstream, make_server: MakeServer, request: pytest.FixtureRequest
) -> None:
    server = make_server()
    if fault is disk_full:
        server.database = request.getfixturevalue("small_disk") / "outlive.db"
    server.start()
    client = server.client
    conversation = client.create_conversation()
    gate = Gate()
    before = client.create(upstream.model(say("Before"))).json()
    rest: list[Step] = [*map(text, PIECES[5:])]
    stream = client.stream(
        upstream.model([*map(text, PIECES[:5]), gate, *rest, *say("End")]), conversation=conversation
    )
    thread = stream.read_in_background()
    stream.wait_frames(1)
    wait_until(lambda: text_of(client.retrieve(stream.id)) == "".join(PIECES[:5]), "it has started")
    listed = client.list_responses()

    with fault(server):
        for path in ("/v1/responses", "/v1/conversations"):
            refused = client.post(path, {"model": "any", "input": "Hi"} if path == "/v1/responses" else {})
            assert (refused.status, refused.error["type"]) == (503, "server_error"), refused
            # Not in the database's own words, which may quote SQL and values.
            unavailable = r"The database is unavailable \(during [a-z ]+\)\. Try again\."
            assert re.fullmatch(unavailable, refused.error["message"])
            assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: client.ready_status() == 503, "the server is not ready")
        assert client.ready_status() == 503  # and it stays so
        assert client.get("/healthz").status == 200
        # The upstream is read on, but no event is shown before it is durable.
        seen = len(stream.frames)
        gate.open()
        time.sleep(0.5)
        assert len(stream.frames) == seen and thread.is_alive()
        assert text_of(client.retrieve(stream.id)) == "".join(PIECES[:5])
        # Reads and unstored responses need no write.
        assert client.retrieve(before["id"]) == before
        assert client.create(upstream.model(say("Unstored")), store=False).json()["status"] == "completed"
        assert client.list_responses() == listed

    thread.join(30)
    assert stream.complete
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join([*PIECES, "End"]))
    assert "outlive" not in body
    check_conversation(client, conversation, [body])
    wait_until(lambda: client.ready_status() == 200, "the server is ready again")
    assert client.create(upstream.model(say("After"))).status == 200
    server.kill()
    check_file(server.database)


def test_a_kill_during_a_storage_fault_loses_no_event_that_was_seen(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    client = server.client
    gate = Gate()
    with client.stream(upstream.model([*map(text, PIECES[:5]), gate, *map(text, PIECES[5:]), HANG])) as stream:
        stream.read_delta(PIECES[4])
        with writes_fail(server):
            gate.open()
            assert client.create("any").status == 503
            server.kill()
        assert stream.read() is None
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("incomplete", "".join(PIECES[:5]))
    server.kill()
    check_file(server.database)


def test_the_server_shuts_down_during_a_storage_fault(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "0.2").start()
    client = server.client
    gate = Gate()
    waiting = client.submit(upstream.model([HANG], say("Well")))
    with client.stream(upstream.model([*map(text, PIECES[:5]), gate, *map(text, PIECES[5:]), HANG])) as stream:
        stream.read_delta(PIECES[4])
        with writes_fail(server):
            gate.open()
            assert client.create("any").status == 503
            assert server.terminate() == 0
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert check_ended(client, waiting)["status"] == "completed"


def test_a_storage_fault_limits_how_far_the_upstream_is_read(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server().start()
    client = server.client
    gate = Gate()
    long = ["x" * 10_000 for _ in range(1500)]  # 15 MB
    response_id = client.submit(upstream.model([text("Once "), gate, *map(text, long), *say("end")]))
    wait_until(lambda: text_of(client.retrieve(response_id)) == "Once ", "it has started")
    resident = server.resident_bytes
    with writes_fail(server):
        gate.open()
        time.sleep(1)
        assert server.resident_bytes - resident < 16_000_000
    body = client.wait_ended(response_id)  # at the longest text that a response may have
    assert body["status"] == "incomplete" and 4 * 1024 * 1024 < len(text_of(body)) < 8 * 1024 * 1024


def test_recovery_waits_until_the_database_can_be_written(upstream: FakeUpstream, make_server: MakeServer) -> None:
    """The file can be opened and not written: interrupted runs are recovered once it can be written."""
    server = make_server(continuation="prefill").start()
    client = server.client
    with client.stream(upstream.model([*map(text, PIECES[:5]), HANG], stream_words(PIECES))) as stream:
        stream.read_delta(PIECES[4])
        server.kill()
    with locked(server):
        server.launch()
        time.sleep(1)
    server.wait_ready()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))


def test_a_read_only_database_is_refused_with_a_message(server: OutliveServer) -> None:
    server.kill()
    files = [file for file in server.folder.iterdir() if file.name.startswith(server.database.name)]
    with read_only([server.folder, *files]):
        refused = subprocess.run(server.command, capture_output=True, text=True, timeout=30, cwd=server.folder)
    assert refused.returncode == 2
    assert "cannot be opened" in refused.stderr
    assert "Traceback" not in refused.stderr
    server.start()


@contextmanager
def read_only(paths: list[Path]) -> Iterator[None]:
    """Make the paths read-only, for root by a flag of the file system."""
    if os.getuid() != 0:
        for path in paths:
            path.chmod(0o555)
    elif subprocess.run(["chattr", "+i", *map(str, paths)], capture_output=True).returncode != 0:
        subprocess.run(["chattr", "-i", *map(str, paths)], capture_output=True)
        pytest.skip("this file system has no flag that makes a file read-only for root")
    try:
        yield
    finally:
        if os.getuid() != 0:
            for path in paths:
                path.chmod(0o755)
        else:
            subprocess.run(["chattr", "-i", *map(str, paths)], check=True)
