"""`outlive serve --processes N`: several processes on one port, under one supervisor."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest
from openai import OpenAI

from outlive.client import stream
from outlive.http.metrics import merge_metrics
from tests.support.http_client import HttpClient
from tests.support.postgres import DATABASES
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import FakeUpstream, Gate, ending, text
from tests.support.waiting import wait_until
from tests.telemetry.scrapes import Scrape

OLD, NEW = "old-key-of-alice", "new-key-of-alice"


class ManyProcesses(OutliveServer):
    """A supervisor and its processes."""

    def __init__(self, folder: Path, upstream: FakeUpstream, *flags: str, keys: str = "", grace: float = 20.0) -> None:
        self.config = folder / "outlive.toml"
        self.configure(upstream, keys)
        options = ("--config", str(self.config), "--lease-seconds", "1", "--grace-seconds", f"{grace:g}")
        super().__init__(folder, None, *options, *flags, database_url=DATABASES.create())

    def configure(self, upstream: FakeUpstream, keys: str) -> None:
        target = f'[upstreams.scripted]\nurl = "{upstream.url}"\ncontinuation = "prefill"\n'
        self.config.write_text(f"{keys}\n{target}")

    @property
    def started(self) -> list[int]:
        """The ids of all processes so far."""
        return [int(found) for found in re.findall(r"process started number=\d+ pid=(\d+)", self.log)]

    @property
    def serving(self) -> int:
        """The number of processes that began to serve."""
        return self.log.count("listening on")

    def wait_serving(self, count: int) -> None:
        wait_until(lambda: self.serving >= count, f"{count} processes serve:\n{self.log}")

    def find_owner(self, response_id: str) -> int:
        """Return the process id of the one that runs a response."""
        name = DATABASES.server.sql(
            "SELECT l.worker FROM outlive.leases l JOIN outlive.responses r ON r.key = l.response "
            f"WHERE r.id = '{response_id}'",
            self.database_url.rpartition("/")[2],
        )
        return int(name.split("-")[-2])


MakeProcesses = Callable[..., ManyProcesses]


@pytest.fixture
def make(tmp_path: Path, upstream: FakeUpstream) -> Iterator[MakeProcesses]:
    """Starts a server with two processes, which is stopped at the test's end."""
    with ExitStack() as stack:

        def start(*flags: str, **options: object) -> ManyProcesses:
            server = ManyProcesses(tmp_path, upstream, "--processes", "2", *flags, **options)  # type: ignore[arg-type]
            stack.enter_context(server)
            server.wait_serving(2)
            return server

        yield start


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def read_whole(server: OutliveServer, model: str, key: str = "any") -> str:
    """Stream an answer with outlive.client, and return its text."""
    client = OpenAI(base_url=server.base_url, api_key=key, max_retries=0)
    events = list(stream(client, model=model, input="Hi"))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_killed_process_is_restarted_and_its_streams_lose_nothing(
    make: MakeProcesses, upstream: FakeUpstream
) -> None:
    server, pieces = make(), words(150)
    models = [upstream.model(*[stream_words(pieces, pause=0.02)] * 4) for _ in range(8)]
    with ThreadPoolExecutor(len(models)) as pool:
        reading = [pool.submit(read_whole, server, model) for model in models]
        for model in models:
            upstream.wait_call(model)
        running = server.client.list_responses("?status=in_progress")
        killed = Counter(server.find_owner(response["id"]) for response in running).most_common(1)[0][0]
        os.kill(killed, signal.SIGKILL)
        assert [each.result() for each in reading] == ["".join(pieces)] * len(models)
    server.wait_serving(3)
    assert f"pid={killed} code=-9" in server.log
    assert server.is_ready()


def test_connections_are_spread_over_the_processes(make: MakeProcesses, upstream: FakeUpstream) -> None:
    port = free_port()
    server = make("--metrics-port", str(port))
    for _ in range(100):
        assert HttpClient(server.port).create(upstream.model(), generate=False).status == 200
    for address in (server.url, f"http://127.0.0.1:{port}"):
        with urlopen(f"{address}/metrics") as answer:
            body = answer.read().decode()
        found = Scrape(body)
        admitted = {
            dict(labels)["process"]: value
            for (name, labels), value in found.samples.items()
            if name == "outlive_responses_admitted_total"
        }
        # Even, but by chance: the probability of less is 1 in 10 million.
        assert set(admitted) == {"1", "2"} and sum(admitted.values()) == 100 and min(admitted.values()) > 22
        samples = [line for line in body.splitlines() if not line.startswith("#")]
        assert len(samples) == len(found.samples)
        assert {process for line in samples for process in re.findall(r'\{process="(\d+)"', line)} == {"1", "2"}
        assert found["info"] == 2


def test_processes_drain_one_after_the_other_and_are_not_ready_together(
    make: MakeProcesses, upstream: FakeUpstream
) -> None:
    server, gate = make(), Gate()
    first, second = server.started
    assert f"number=1 pid={first}" in server.log
    with ExitStack() as stack:
        held = None
        # A response that is not stored can only end where it began.
        while held is None or not count_running(server)["1"]:
            held = server.client.stream(upstream.model([text("a"), gate, *ending()]), store=False)
            stack.enter_context(held).read_delta("a")
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: server.client.ready_status() == 503, "it is not ready")
        assert exists(first) and exists(second)
        # The second process serves. What the first one accepted in the moment in which it closed its socket is refused.
        create = partial(server.client.create, upstream.model(stream_words(["b"]), stream_words(["b"])))
        assert 200 in (create().status, create().status)
        gate.open()
        held.read_all()
    assert server.wait_exit() == 0
    assert not exists(first) and not exists(second)


def count_running(server: OutliveServer) -> dict[str, float]:
    """Return the number of running responses by process."""
    found = Scrape(server.client.get("/metrics").body.decode()).samples.items()
    return {dict(labels)["process"]: value for (name, labels), value in found if name == "outlive_responses_running"}


def test_a_reload_reads_the_settings_anew_and_loses_nothing(make: MakeProcesses, upstream: FakeUpstream) -> None:
    server = make(keys=f'[keys]\nalice = "{OLD}"', grace=1.0)
    before, pieces = server.started, words(100)
    model = upstream.model(*[stream_words(pieces, pause=0.03)] * 4)
    server.configure(upstream, f'[keys]\nalice = ["{OLD}", "{NEW}"]')
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_whole, server, model, OLD)
        upstream.wait_call(model)
        server.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log.count(" reloaded") == 1, f"it has reloaded:\n{server.log}")
        assert reading.result() == "".join(pieces)
    assert not any(map(exists, before)) and all(map(exists, server.started[2:]))
    for _ in range(10):
        assert HttpClient(server.port, NEW).get("/v1/responses").status == 200


def test_a_reload_with_wrong_settings_changes_nothing(make: MakeProcesses, upstream: FakeUpstream) -> None:
    server = make()
    before = server.started
    server.config.write_text("no_such_setting = 1")
    server.send_signal(signal.SIGHUP)
    wait_until(lambda: "reload stopped: the new process ended with code 2" in server.log, "the reload has stopped")
    assert "no_such_setting" in server.log and all(map(exists, before))
    assert server.is_ready()


def test_processes_end_when_their_supervisor_is_killed(make: MakeProcesses) -> None:
    server = make(grace=1.0)
    server.kill()
    wait_until(lambda: not any(map(exists, server.started)), "the processes have ended")
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection("127.0.0.1", server.port).connect()


def test_a_second_supervisor_does_not_share_the_port(
    make: MakeProcesses, tmp_path: Path, upstream: FakeUpstream
) -> None:
    first = make()
    (tmp_path / "second").mkdir()
    second = ManyProcesses(tmp_path / "second", upstream, "--processes", "2")
    second.port = first.port
    assert second.launch().wait_exit() == 2
    assert "Cannot listen on" in second.log


@pytest.mark.parametrize(
    ("database", "sentence"),
    [("sqlite:///a.db", "A SQLite file has one server"), ("postgresql://x@127.0.0.1:1/x", "cannot be reached")],
)
def test_processes_that_cannot_start_are_not_started_again(tmp_path: Path, database: str, sentence: str) -> None:
    server = OutliveServer(tmp_path, "http://127.0.0.1:9/v1", "--processes", "2", database_url=database)
    assert server.launch().wait_exit() == 2
    assert sentence in " ".join(server.log.split())


def test_merged_metrics_name_each_family_once() -> None:
    scrapes = {"1": b"# HELP a_total A.\n# TYPE a_total counter\na_total 1.0\n", "2": b"", "3": b""}
    scrapes["3"] = (
        b'# HELP b B.\n# TYPE b gauge\nb{x="{"} 2.0\n# HELP a_total A.\n# TYPE a_total counter\na_total 3.0\n'
    )
    assert merge_metrics(scrapes).decode().splitlines() == [
        *("# HELP a_total A.", "# TYPE a_total counter", 'a_total{process="1"} 1.0', 'a_total{process="3"} 3.0'),
        *("# HELP b B.", "# TYPE b gauge", 'b{process="3",x="{"} 2.0'),
    ]
