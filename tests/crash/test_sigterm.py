"""SIGTERM: what can go on elsewhere is handed back at once, what cannot gets a while, and streams are cut (D11)."""

from __future__ import annotations

import signal
import threading
import time

from tests.crash.conftest import Serve
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import Answer, HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, say, text
from tests.support.waiting import wait_until

STORY = words(20)


class Waiting(threading.Thread):
    """A plain create, waiting for its answer."""

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
    wait_until(lambda: client.ready_status() == 503, "readyz says not ready")


def test_while_draining_nothing_new_is_accepted(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "20").start()
    client = HttpClient(server.port)
    gate = Gate()
    with client.stream(upstream.model([text("Once "), gate, *say("upon")])) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        server.send_signal(signal.SIGTERM)
        wait_draining(client)
        assert client.get("/healthz").status == 200
        for fields in ({}, {"stream": True}, {"background": True}, {"store": False}):
            refused = client.create("any", **fields)
            assert (refused.status, refused.json()["error"]["type"]) == (503, "server_error")
            assert int(refused.headers["retry-after"]) >= 1
        # Reading is still possible, and the run that showed something runs on.
        assert client.retrieve(stream.id)["status"] == "in_progress"
        gate.open()
        stream.read_all()
    assert server.wait_exit() == 0
    assert stream.complete and stream.events[-1]["type"] == "response.completed"


def test_runs_with_nothing_visible_are_handed_back_without_an_attempt(
    upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server("--grace-seconds", "20").start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    model = upstream.model([HANG], [HANG], [HANG], say("At", " last"))
    plain = Waiting(client, model, conversation=conversation)
    upstream.wait_call(model)
    response_id = client.get("/v1/responses").json()["data"][0]["id"]
    with client.follow(response_id) as stream:
        stream.read_type("response.in_progress")
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 5, "handed back at once"
        assert stream.read() is None and stream.cut

    answer = plain.get()
    assert answer.status == 503
    assert response_id in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"

    # More of these than there are attempts: none is counted.
    for attempt in (2, 3):
        server.start()
        upstream.wait_call(model, attempt)
        assert server.terminate() == 0
    server.start()
    body = check_ended(client, response_id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "At last")
    assert "outlive" not in body
    check_conversation(client, conversation, [body])


def test_a_run_that_can_continue_is_handed_back_in_mid_sentence(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "20", continuation="prefill").start()
    client = HttpClient(server.port)
    model = upstream.model([*map(text, STORY[:5]), HANG], stream_words(STORY))
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 5, "handed back at once"
        assert stream.read() is None and stream.cut
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
    assert body["outlive"]["resumed_at"] == [stream.last_number + 1]


def test_a_run_that_cannot_go_on_elsewhere_ends_as_interrupted_after_the_grace_time(
    upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server("--grace-seconds", "0.5").start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    model = upstream.model([*map(text, STORY[:5]), HANG])
    plain = Waiting(client, upstream.model([text("Well"), HANG]))
    with client.stream(model, conversation=conversation) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        wait_until(lambda: text_of_all(client) == {"Well", "".join(STORY[:5])}, "both have shown something")
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 6
        stream.read_all()
    # It ended within the server's life, so whoever listened heard the end.
    assert plain.get().json()["status"] == "incomplete"
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert "shut down" in body["incomplete_details"]["message"]
    assert text_of(body) == "".join(STORY[:5])
    check_conversation(client, conversation, [body])
    server.kill()
    check_file(server.database)


def text_of_all(client: HttpClient) -> set[str]:
    return {text_of(client.retrieve(listed["id"])) for listed in client.get("/v1/responses").json()["data"]}


def test_what_is_not_stored_gets_the_grace_time_too(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "20").start()
    client = HttpClient(server.port)
    gate, end = Gate(), Gate()
    model = upstream.model([text("Once "), gate, text("upon "), end, *say("a time")])
    plain = Waiting(client, model, store=False)
    upstream.wait_call(model)
    with client.stream(model, store=False) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        server.send_signal(signal.SIGTERM)
        wait_draining(client)
        gate.open()
        stream.read_until(lambda event: event.get("delta") == "upon ")
        end.open()
        stream.read_all()
    assert stream.complete and stream.events[-1]["type"] == "response.completed"
    assert plain.get().json()["status"] == "completed"
    assert server.wait_exit() == 0


def test_what_is_not_stored_and_does_not_end_is_cut(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "0.3").start()
    client = HttpClient(server.port)
    model = upstream.model([text("Once "), HANG])
    plain = Waiting(client, model, store=False)
    upstream.wait_call(model)
    with client.stream(model, store=False) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 4
        assert stream.read() is None and stream.cut
    answer = plain.get()
    assert answer.status == 503
    assert "retrieve" not in answer.json()["error"]["message"], "there is nothing to come back to"


def test_idle_connections_do_not_hold_the_server_back(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "20", "--max-running", "1").start()
    client = HttpClient(server.port)
    running = client.submit(upstream.model([HANG]))
    waiting = client.submit(upstream.model([HANG]))
    polling = threading.Thread(target=lambda: client.retrieve(waiting, "?wait=60"), daemon=True)
    polling.start()
    with client.follow(waiting) as stream:
        stream.read_type("response.queued")
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 5
        assert stream.read() is None and stream.cut
    polling.join(5)
    assert not polling.is_alive()
    server.start()
    assert client.retrieve(running)["status"] == "in_progress"


def test_a_second_signal_leaves_at_once(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server("--grace-seconds", "60").start()
    client = HttpClient(server.port)
    with client.stream(upstream.model([text("Once "), HANG])) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        server.send_signal(signal.SIGTERM)
        wait_draining(client)
        assert server.process is not None
        server.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert server.wait_exit() == 0
        assert time.monotonic() - began < 5
    server.start()
    assert check_ended(client, stream.id, stream.frames)["status"] == "incomplete"


def test_many_handed_back_at_once_all_finish_after_the_restart(upstream: FakeUpstream, make_server: Serve) -> None:
    """Some are ending in the very moment of the signal; none may be lost or hold the server back."""
    server: OutliveServer = make_server("--grace-seconds", "20", continuation="prefill").start()
    client = HttpClient(server.port)
    model = upstream.model(stream_words(STORY, pause=0.02))
    ids = [client.submit(model) for _ in range(150)]
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 8
    server.start()
    for response_id in ids:
        body = check_ended(client, response_id)
        assert (body["status"], text_of(body)) == ("completed", "".join(STORY))


def test_being_stopped_again_and_again_during_recovery_uses_up_no_attempt(
    upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server().start()
    client = HttpClient(server.port)
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
        # One for the run that was killed, one for the run that was not.
        assert body["outlive"] == {"attempts": 2, "resumed_at": []}
