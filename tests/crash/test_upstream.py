"""An upstream that goes away and comes back (D10)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.crash.conftest import Serve
from tests.support.checks import check_conversation, check_ended
from tests.support.http_client import HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import CUT, HANG, FakeUpstream, Refuse, say, text
from tests.support.waiting import wait_until

STORY = words(20)


def test_an_upstream_that_is_gone_for_a_moment_is_asked_again(make_server: Serve) -> None:
    port = free_port()
    server = make_server()
    server.upstream = f"http://127.0.0.1:{port}/v1"
    server.start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    response_id = client.submit("any", conversation=conversation)
    wait_until(lambda: client.retrieve(response_id)["status"] == "in_progress", "it runs")
    assert client.ready_status() == 200
    late = FakeUpstream()
    late.port = port
    with late:
        late.on("any", say("Back", " again"))
        body = check_ended(client, response_id)
    assert (body["status"], text_of(body)) == ("completed", "Back again")
    check_conversation(client, conversation, [body])


def test_an_upstream_that_stays_away_fails_the_response_and_frees_its_conversation(
    make_server: Serve,
) -> None:
    server = make_server()
    server.upstream = f"http://127.0.0.1:{free_port()}/v1"
    server.start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    answer = client.create("any", input="Anybody there?", conversation=conversation)
    assert answer.status == 502
    assert answer.headers["x-should-retry"] == "false"
    (listed,) = client.get("/v1/responses").json()["data"]
    assert listed["id"] in answer.json()["error"]["message"]
    body = check_ended(client, listed["id"])
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert client.list_items(conversation) == []
    check_conversation(client, conversation, [body])


@pytest.mark.parametrize("restart", [False, True], ids=["breaks", "breaks and then the server is killed"])
def test_an_upstream_that_breaks_in_mid_sentence_is_asked_to_write_on(
    restart: bool, upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    sorry = Refuse(503, retry_after="1" if restart else "0")
    model = upstream.model([*map(text, STORY[:5]), CUT], [sorry], stream_words(STORY))
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        upstream.wait_call(model, 2)
        if restart:
            server.restart()
        else:
            stream.read_all()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
    assert len(body["output"]) == 1
    assert body["outlive"] == {"attempts": 3, "resumed_at": [stream_joint(stream.frames)] * 2}
    assert body["usage"]["output_tokens"] == len(STORY)


def stream_joint(frames: list[bytes]) -> int:
    """The number after the last delta of the first attempt."""
    return next(n for n, frame in enumerate(frames) if f'"delta":"{STORY[4]}"'.encode() in frame) + 1


def test_an_upstream_that_breaks_and_cannot_continue_leaves_an_honest_end(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    conversation = client.create_conversation()
    began = time.monotonic()
    answer = client.create(upstream.model([*map(text, STORY[:5]), CUT]), conversation=conversation)
    assert time.monotonic() - began < 5
    assert (answer.status, answer.json()["status"]) == (200, "incomplete")
    assert answer.json()["incomplete_details"]["reason"] == "interrupted"
    assert text_of(answer.json()) == "".join(STORY[:5])
    check_ended(client, answer.json()["id"])
    check_conversation(client, conversation, [answer.json()])


def test_answers_over_shared_connections_never_cross(upstream: FakeUpstream, server: OutliveServer) -> None:
    """Connections to the upstream are used again, after good ends and bad ones; nobody may get another's answer."""
    client = HttpClient(server.port)
    good, failing = ("plain", "stream", "chat"), ("refused", "cut", "left")

    def ask(number: int) -> None:
        word, kind = f"word-{number}-", (good + failing)[number % 6]
        if kind in good:
            model = upstream.model(say(word, word))
        else:
            model = upstream.model([Refuse(400)] if kind == "refused" else [text(word), CUT if kind == "cut" else HANG])
        if kind == "chat":
            chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            with client.open_stream("POST", "/v1/chat/completions", chat) as passed:
                assert b"".join(passed.read_all().frames).count(word.encode()) == 2
        elif kind == "left":
            with client.stream(model, store=number % 4 == 0) as stream:
                assert stream.read_type("response.output_text.delta")["delta"] == word
        elif kind == "refused":
            assert client.create(model, store=False).status == 400
        elif kind == "cut":
            assert text_of(client.create(model).json()) == word
        elif kind == "plain":
            assert text_of(client.create(model, store=number % 4 == 0).json()) == word * 2
        else:
            with client.stream(model) as stream:
                assert text_of(stream.read_all().events[-1]["response"]) == word * 2

    with ThreadPoolExecutor(24) as pool:
        for _ in pool.map(ask, range(600)):
            pass
