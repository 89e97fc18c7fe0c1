"""A full disk, a locked or read-only database: clear errors, paused streams, nothing corrupt, and on it goes."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.crash.conftest import Serve
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Step, say, text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")

STORY = words(40)

Fault = Callable[[OutliveServer], AbstractContextManager[None]]


@contextmanager
def writes_fail(server: OutliveServer) -> Iterator[None]:
    """No file of the process may grow, nor be written at all."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        if server.process is not None and server.process.poll() is None:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def disk_full(server: OutliveServer) -> Iterator[None]:
    """Not a byte is left on the disk that the database lies on."""
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
    """Another program holds the database for itself."""
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
        pytest.skip("a disk that is full takes a mount of its own, which the kernel does not allow this user")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("fault", [writes_fail, disk_full, locked])
def test_a_storage_fault_refuses_new_work_and_pauses_what_runs_until_it_is_over(
    fault: Fault, upstream: FakeUpstream, make_server: Serve, request: pytest.FixtureRequest
) -> None:
    server = make_server()
    if fault is disk_full:
        server.database = request.getfixturevalue("small_disk") / "outlive.db"
    server.start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    gate = Gate()
    before = client.create(upstream.model(say("Before"))).json()
    rest: list[Step] = [*map(text, STORY[5:])]
    stream = client.stream(upstream.model([*map(text, STORY[:5]), gate, *rest, *say("End")]), conversation=conversation)
    thread = stream.read_in_background()
    stream.wait_frames(1)
    wait_until(lambda: text_of(client.retrieve(stream.id)) == "".join(STORY[:5]), "it has begun")
    listed = client.get("/v1/responses").json()["data"]

    with fault(server):
        for path in ("/v1/responses", "/v1/conversations"):
            refused = client.post(path, {"model": "any", "input": "Hi"} if path == "/v1/responses" else {})
            assert (refused.status, refused.json()["error"]["type"]) == (503, "server_error"), refused
            assert "database" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: client.ready_status() == 503, "not ready")
        assert client.ready_status() == 503  # and it stays so
        assert client.get("/healthz").status == 200
        # What runs goes on being received, but nothing is shown that is not durable.
        seen = len(stream.frames)
        gate.open()
        time.sleep(0.5)
        assert len(stream.frames) == seen and thread.is_alive()
        assert text_of(client.retrieve(stream.id)) == "".join(STORY[:5])
        # Reading needs no writing, and neither does what is not stored.
        assert client.retrieve(before["id"]) == before
        assert client.create(upstream.model(say("Fleeting")), store=False).json()["status"] == "completed"
        assert client.get("/v1/responses").json()["data"] == listed

    thread.join(30)
    assert stream.complete
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join([*STORY, "End"]))
    assert "outlive" not in body
    check_conversation(client, conversation, [body])
    wait_until(lambda: client.ready_status() == 200, "ready again")
    assert client.create(upstream.model(say("After"))).status == 200
    server.kill()
    check_file(server.database)


def test_a_kill_during_a_storage_fault_loses_nothing_that_was_seen(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    client = HttpClient(server.port)
    gate = Gate()
    with client.stream(upstream.model([*map(text, STORY[:5]), gate, *map(text, STORY[5:]), HANG])) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        with writes_fail(server):
            gate.open()
            assert client.create("any").status == 503
            server.kill()
        assert stream.read() is None
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("incomplete", "".join(STORY[:5]))
    server.kill()
    check_file(server.database)


def test_the_server_can_be_stopped_during_a_storage_fault(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "0.2").start()
    client = HttpClient(server.port)
    gate = Gate()
    waiting = client.submit(upstream.model([HANG], say("Well")))
    with client.stream(upstream.model([*map(text, STORY[:5]), gate, *map(text, STORY[5:]), HANG])) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        with writes_fail(server):
            gate.open()
            assert client.create("any").status == 503
            began = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - began < 15
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert check_ended(client, waiting)["status"] == "completed"


def test_an_upstream_is_not_read_further_than_can_be_kept(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server().start()
    client = HttpClient(server.port)
    gate = Gate()
    long = ["x" * 10_000 for _ in range(2500)]  # 25 MB
    response_id = client.submit(upstream.model([text("Once "), gate, *map(text, long), *say("end")]))
    wait_until(lambda: text_of(client.retrieve(response_id)) == "Once ", "it has begun")
    resident = server.resident_bytes
    with writes_fail(server):
        gate.open()
        time.sleep(1)
        assert server.resident_bytes - resident < 16_000_000
    body = client.wait_ended(response_id)
    assert len(text_of(body)) == 25_000_000 + len("Once end")


def test_recovery_waits_for_a_storage_that_comes_late(upstream: FakeUpstream, make_server: Serve) -> None:
    """The file can be opened, but not written: what was cut off is taken up once it can."""
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    with client.stream(upstream.model([*map(text, STORY[:5]), HANG], stream_words(STORY))) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        server.kill()
    with locked(server):
        server.launch()
        time.sleep(1)
    server.wait_ready()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))


def test_a_read_only_database_is_refused_with_a_sentence(server: OutliveServer) -> None:
    server.kill()
    files = [file for file in server.folder.iterdir() if file.name.startswith(server.database.name)]
    with frozen([server.folder, *files]):
        refused = subprocess.run(server.command, capture_output=True, text=True, timeout=30, cwd=server.folder)
    assert refused.returncode == 2
    assert "cannot be opened" in refused.stderr
    assert "Traceback" not in refused.stderr
    server.start()


@contextmanager
def frozen(paths: list[Path]) -> Iterator[None]:
    """Nothing there can be written, not even by root where the file system has a flag for that."""
    if os.getuid() != 0:
        for path in paths:
            path.chmod(0o555)
    elif subprocess.run(["chattr", "+i", *map(str, paths)], capture_output=True).returncode != 0:
        subprocess.run(["chattr", "-i", *map(str, paths)], capture_output=True)
        pytest.skip("this file system has no flag that keeps root from writing, so no file here is read-only")
    try:
        yield
    finally:
        if os.getuid() != 0:
            for path in paths:
                path.chmod(0o755)
        else:
            subprocess.run(["chattr", "-i", *map(str, paths)], check=True)
