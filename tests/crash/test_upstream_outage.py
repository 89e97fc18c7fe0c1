"""Outages of the upstream (D10)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.crash.conftest import MakeServer
from tests.support.checks import check_conversation, check_ended
from tests.support.http_client import HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import CUT, HANG, FakeUpstream, Refuse, say, text
from tests.support.waiting import wait_until

PIECES = words(20)


def test_an_unreachable_upstream_is_retried_until_it_is_back(make_server: MakeServer) -> None:
    port = free_port()
    server = make_server()
    server.upstream = f"http://127.0.0.1:{port}/v1"
    server.start()
    client = server.client
    conversation = client.create_conversation()
    response_id = client.submit("any", conversation=conversation)
    wait_until(lambda: client.retrieve(response_id)["status"] == "in_progress", "it is in progress")
    assert client.ready_status() == 200
    late = FakeUpstream()
    late.port = port
    with late:
        late.on("any", say("Back", " again"))
        body = check_ended(client, response_id)
    assert (body["status"], text_of(body)) == ("completed", "Back again")
    check_conversation(client, conversation, [body])


def test_an_upstream_that_stays_unreachable_fails_the_response_and_unlocks_its_conversation(
    make_server: MakeServer,
) -> None:
    server = make_server()
    server.upstream = f"http://127.0.0.1:{free_port()}/v1"
    server.start()
    client = server.client
    conversation = client.create_conversation()
    answer = client.create("any", input="Hello?", conversation=conversation)
    assert answer.status == 502
    assert answer.headers["x-should-retry"] == "false"
    (listed,) = client.list_responses()
    assert listed["id"] in answer.error["message"]
    body = check_ended(client, listed["id"])
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert client.list_items(conversation) == []
    check_conversation(client, conversation, [body])


@pytest.mark.parametrize("restart", [False, True], ids=["cut", "cut and killed"])
def test_a_text_cut_by_its_upstream_is_continued(
    restart: bool, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill").start()
    client = server.client
    unavailable = Refuse(503, retry_after="1" if restart else "0")
    model = upstream.model([*map(text, PIECES[:5]), CUT], [unavailable], stream_words(PIECES))
    with client.stream(model) as stream:
        stream.read_delta(PIECES[4])
        upstream.wait_call(model, 2)
        if restart:
            server.restart()
        else:
            stream.read_all()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
    assert len(body["output"]) == 1
    assert body["outlive"] == {"attempts": 3, "resumed_at": [find_resumption(stream.frames)] * 2}
    assert body["usage"]["output_tokens"] == len(PIECES)


def find_resumption(frames: list[bytes]) -> int:
    """Return the number after the last delta of the first attempt."""
    return next(n for n, frame in enumerate(frames) if f'"delta":"{PIECES[4]}"'.encode() in frame) + 1


def test_a_cut_answer_that_cannot_be_continued_ends_as_interrupted(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    conversation = client.create_conversation()
    model = upstream.model([*map(text, PIECES[:5]), CUT])
    answer = client.create(model, conversation=conversation)
    assert len(upstream.calls(model)) == 1, "it is not retried"
    assert (answer.status, answer.json()["status"]) == (200, "incomplete")
    assert answer.json()["incomplete_details"]["reason"] == "interrupted"
    assert text_of(answer.json()) == "".join(PIECES[:5])
    check_ended(client, answer.json()["id"])
    check_conversation(client, conversation, [answer.json()])


def test_answers_over_reused_upstream_connections_are_never_mixed_up(
    upstream: FakeUpstream, server: OutliveServer
) -> None:
    """Connections to the upstream are reused after good and bad ends; no client may get the answer of another."""
    client = server.client
    good, failing = ("plain", "stream", "chat"), ("refused", "cut", "disconnected")

    def run(number: int) -> None:
        word, kind = f"word-{number}-", (good + failing)[number % 6]
        if kind in good:
            model = upstream.model(say(word, word))
        else:
            model = upstream.model([Refuse(400)] if kind == "refused" else [text(word), CUT if kind == "cut" else HANG])
        if kind == "chat":
            chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            with client.open_stream("POST", "/v1/chat/completions", chat) as stream:
                assert b"".join(stream.read_all().frames).count(word.encode()) == 2
        elif kind == "disconnected":
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
        for _ in pool.map(run, range(600)):
            pass
