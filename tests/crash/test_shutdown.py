"""SIGTERM: runs that can be continued are released at once, others get the grace period, and streams are cut (D11).

Where a shutdown must not wait for its grace period, that is longer than `terminate` waits for the exit."""

from __future__ import annotations

import signal
import threading

from tests.crash.conftest import MakeServer
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import Answer, HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, say, text
from tests.support.waiting import wait_until

PIECES = words(20)


class PlainCreate(threading.Thread):
    """A plain create in a thread."""

    def __init__(self, client: HttpClient, model: str, **fields: object) -> None:
        super().__init__(daemon=True)
        self.answer: Answer | None = None
        self._ask = lambda: client.create(model, **fields)
        self.start()

    def run(self) -> None:
        self.answer = self._ask()

    def get(self) -> Answer:
        self.join(30)
        assert self.answer is not None
        return self.answer


def wait_draining(client: HttpClient) -> None:
    wait_until(lambda: client.ready_status() == 503, "the server is draining")


def test_a_draining_server_refuses_new_responses(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "60").start()
    client = server.client
    gate = Gate()
    with client.stream(upstream.model([text("Once "), gate, *say("upon")])) as stream:
        stream.read_delta("Once ")
        server.send_signal(signal.SIGTERM)
        wait_draining(client)
        assert client.get("/healthz").status == 200
        for fields in ({}, {"stream": True}, {"background": True}, {"store": False}):
            refused = client.create("any", **fields)
            assert (refused.status, refused.error["type"]) == (503, "server_error")
            assert int(refused.headers["retry-after"]) >= 1
        # Reading is still possible, and the run with visible output continues.
        assert client.retrieve(stream.id)["status"] == "in_progress"
        gate.open()
        stream.read_all()
    assert server.wait_exit() == 0
    assert stream.complete and stream.events[-1]["type"] == "response.completed"


def test_sighup_drains_like_sigterm(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "60").start()
    client = server.client
    gate = Gate()
    with client.stream(upstream.model([text("Once "), gate, *say("upon")])) as stream:
        stream.read_delta("Once ")
        server.send_signal(signal.SIGHUP)
        wait_draining(client)
        gate.open()
        stream.read_all()
    assert server.wait_exit() == 0
    assert stream.complete and stream.events[-1]["type"] == "response.completed"


def test_runs_without_visible_output_are_released_without_counting_an_attempt(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server("--grace-seconds", "60").start()
    client = server.client
    conversation = client.create_conversation()
    model = upstream.model([HANG], [HANG], [HANG], say("At", " last"))
    plain = PlainCreate(client, model, conversation=conversation)
    upstream.wait_call(model)
    response_id = client.list_responses()[0]["id"]
    with client.follow(response_id) as stream:
        stream.read_type("response.in_progress")
        assert server.terminate() == 0
        assert stream.read() is None and stream.cut

    answer = plain.get()
    assert answer.status == 503
    assert response_id in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"

    # More releases than there are attempts: none is counted.
    for attempt in (2, 3):
        server.start()
        upstream.wait_call(model, attempt)
        assert server.terminate() == 0
    server.start()
    body = check_ended(client, response_id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "At last")
    assert "outlive" not in body
    check_conversation(client, conversation, [body])


def test_a_run_that_can_be_continued_is_released_at_once(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "60", continuation="prefill").start()
    client = server.client
    model = upstream.model([*map(text, PIECES[:5]), HANG], stream_words(PIECES))
    with client.stream(model) as stream:
        stream.read_delta(PIECES[4])
        assert server.terminate() == 0
        assert stream.read() is None and stream.cut
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
    assert body["outlive"]["resumed_at"] == [stream.last_number + 1]


def test_a_run_that_cannot_be_continued_ends_as_interrupted_after_the_grace_period(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server("--grace-seconds", "0.5").start()
    client = server.client
    conversation = client.create_conversation()
    model = upstream.model([*map(text, PIECES[:5]), HANG])
    plain = PlainCreate(client, upstream.model([text("Well"), HANG]))
    with client.stream(model, conversation=conversation) as stream:
        stream.read_delta(PIECES[4])
        wait_until(lambda: text_of_all(client) == {"Well", "".join(PIECES[:5])}, "both have visible output")
        assert server.terminate() == 0
        stream.read_all()
    # It ended before the server did, so that its clients got the end.
    assert plain.get().json()["status"] == "incomplete"
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert "shut down" in body["incomplete_details"]["message"]
    assert text_of(body) == "".join(PIECES[:5])
    check_conversation(client, conversation, [body])
    server.kill()
    check_file(server.database)


def text_of_all(client: HttpClient) -> set[str]:
    return {text_of(client.retrieve(listed["id"])) for listed in client.list_responses()}


def test_an_unstored_response_ends_within_the_grace_period(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "60").start()
    client = server.client
    gate, end = Gate(), Gate()
    model = upstream.model([text("Once "), gate, text("upon "), end, *say("a time")])
    plain = PlainCreate(client, model, store=False)
    upstream.wait_call(model)
    with client.stream(model, store=False) as stream:
        stream.read_delta("Once ")
        server.send_signal(signal.SIGTERM)
        wait_draining(client)
        gate.open()
        stream.read_delta("upon ")
        end.open()
        stream.read_all()
    assert stream.complete and stream.events[-1]["type"] == "response.completed"
    assert plain.get().json()["status"] == "completed"
    assert server.wait_exit() == 0


def test_an_unstored_response_is_cut_after_the_grace_period(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "0.3").start()
    client = server.client
    model = upstream.model([text("Once "), HANG])
    plain = PlainCreate(client, model, store=False)
    upstream.wait_call(model)
    with client.stream(model, store=False) as stream:
        stream.read_delta("Once ")
        assert server.terminate() == 0
        assert stream.read() is None and stream.cut
    answer = plain.get()
    assert answer.status == 503
    assert "retrieve" not in answer.error["message"], "it cannot be retrieved later"


def test_waiting_connections_do_not_delay_the_shutdown(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "60", "--max-running", "1").start()
    client = server.client
    running = client.submit(upstream.model([HANG]))
    waiting = client.submit(upstream.model([HANG]))
    polling = threading.Thread(target=lambda: client.retrieve(waiting, "?wait=60"), daemon=True)
    polling.start()
    with client.follow(waiting) as stream:
        stream.read_type("response.queued")
        assert server.terminate() == 0
        assert stream.read() is None and stream.cut
    polling.join(5)
    assert not polling.is_alive()
    server.start()
    assert client.retrieve(running)["status"] == "in_progress"


def test_a_second_signal_ends_the_server_at_once(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server("--grace-seconds", "60").start()
    client = server.client
    with client.stream(upstream.model([text("Once "), HANG])) as stream:
        stream.read_delta("Once ")
        server.send_signal(signal.SIGTERM)
        wait_draining(client)
        server.send_signal(signal.SIGINT)
        assert server.wait_exit() == 0
    server.start()
    assert check_ended(client, stream.id, stream.frames)["status"] == "incomplete"


def test_many_released_runs_all_finish_after_the_restart(upstream: FakeUpstream, make_server: MakeServer) -> None:
    """Some end at the moment of the signal; none may be lost or delay the shutdown."""
    server: OutliveServer = make_server("--grace-seconds", "60", continuation="prefill").start()
    client = server.client
    model = upstream.model(stream_words(PIECES, pause=0.02))
    ids = [client.submit(model) for _ in range(150)]
    assert server.terminate() == 0
    server.start()
    for response_id in ids:
        body = check_ended(client, response_id)
        assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))


def test_shutdowns_during_recovery_count_no_attempt(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server().start()
    client = server.client
    model = upstream.model([HANG])
    ids = [client.submit(model) for _ in range(300)]
    server.kill()
    for _ in range(4):
        server.launch()
        wait_until(server.is_ready, "it is ready")
        assert server.terminate() == 0
    upstream.on(model, say("At", " last"))
    server.start()
    for response_id in ids:
        body = client.wait_ended(response_id)
        assert body["status"] == "completed", body
        # The attempt that was killed, and the last one.
        assert body["outlive"] == {"attempts": 2, "resumed_at": []}
