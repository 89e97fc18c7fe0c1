"""kill -9 at failpoints, and what a client finds afterwards (D9)."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException

import pytest

from tests.crash.conftest import MakeServer
from tests.crash.disk_search import find_in_database
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import EventStream, HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Gate, Step, call, reasoning, say, text
from tests.support.waiting import wait_until

PIECES = words(30)

# Each transaction of a streamed turn in a conversation, just before and just after it is on disk.
FAILPOINTS = [
    f"{when}-commit-of-{what}"
    for what in ("admit", "append", "append:2", "append:9", "close")
    for when in ("before", "after")
]


FAILPOINTS_ON_POSTGRES = [point for point in FAILPOINTS if point.endswith(("admit", "append:2", "close"))]


@pytest.mark.parametrize(
    ("on", "point"), [("", point) for point in FAILPOINTS] + [("postgres", point) for point in FAILPOINTS_ON_POSTGRES]
)
def test_a_kill_loses_and_changes_no_event_that_was_seen(
    on: str, point: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill", on=on).start(OUTLIVE_KILL_AT=point)
    client = server.client
    conversation = client.create_conversation(items=[{"role": "user", "content": "Before all that"}])
    seen: list[bytes] = []
    try:
        # Slowly enough for nine commits, of which each takes all that has arrived.
        pause = 0.05 if point.endswith(":9") else 0.003
        with client.stream(upstream.model(stream_words(PIECES, pause=pause)), conversation=conversation) as stream:
            stream.read_all()
            assert stream.cut
            seen = stream.frames
    except (OSError, HTTPException):
        pass  # killed before the stream began
    assert server.wait_exit() == -9

    server.start()
    listed = client.list_responses(f"?conversation={conversation}")
    ids = [response["id"] for response in listed]
    assert len(ids) == (0 if point == "before-commit-of-admit" else 1)
    turns = []
    for response_id in ids:
        body = check_ended(client, response_id, seen)
        assert body["status"] == "completed"
        assert text_of(body) == "".join(PIECES)
        turns.append(body)
    check_conversation(client, conversation, turns)
    server.kill()
    if not on:
        check_file(server.database)


@pytest.mark.parametrize(
    "point", ["before-commit-of-claim", "after-commit-of-claim", "after-commit-of-save-checkpoint"]
)
def test_a_kill_during_recovery_is_recovered_from(point: str, upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server(continuation="prefill").start()
    client = server.client
    gate = Gate()
    model = upstream.model([text("w0 "), text("w1 "), gate], stream_words(PIECES))
    with client.stream(model) as stream:
        stream.read_delta("w1 ")
        server.kill()
        seen, response_id = stream.frames, stream.id
    server.launch(OUTLIVE_KILL_AT=point)
    assert server.wait_exit() == -9
    server.start()
    body = check_ended(client, response_id, seen)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
    assert len(body["output"]) == 1


def test_a_stream_aborted_at_its_first_event_runs_to_its_end(upstream: FakeUpstream, client: HttpClient) -> None:
    gate = Gate()
    with client.stream(upstream.model(stream_words(PIECES, before=[gate]))) as stream:
        stream.read()
    gate.open()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))


def test_a_large_request_killed_before_its_admission_leaves_nothing(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server().start(OUTLIVE_KILL_AT="after-commit-of-stage:2")
    client = server.client
    with pytest.raises((OSError, HTTPException)):
        client.create(upstream.model(), input="large-4720 " * 100_000)
    assert server.wait_exit() == -9
    assert find_in_database(b"large-4720", server)
    server.start()
    assert client.list_responses() == []
    wait_until(lambda: not find_in_database(b"large-4720", server), "the rows written before the admission are gone")
    # Once it is accepted, it survives a restart like any other.
    model = upstream.model([HANG], say("Long"))
    response_id = client.submit(model, input="large-4721 " * 100_000)
    upstream.wait_call(model)
    server.restart()
    assert check_ended(client, response_id)["status"] == "completed"
    assert upstream.wait_call(model, 2).messages == [{"role": "user", "content": "large-4721 " * 100_000}]


@pytest.mark.parametrize("headers", [{"idempotency-key": "k1"}, {"x-stainless-retry-count": "0"}], ids=["key", "retry"])
def test_a_create_repeated_after_a_kill_gets_the_same_response(
    headers: dict[str, str], upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server().start(OUTLIVE_KILL_AT="after-commit-of-admit")
    client = server.client
    body = {"model": upstream.model(say("Just", " once")), "input": "Hi"}
    with pytest.raises((OSError, HTTPException)):
        client.post("/v1/responses", body, **headers)
    assert server.wait_exit() == -9
    server.start()
    again = headers | ({"x-stainless-retry-count": "1"} if "x-stainless-retry-count" in headers else {})
    answer = client.post("/v1/responses", body, **again)
    assert (answer.status, text_of(answer.json())) == (200, "Just once")
    assert len(client.list_responses()) == 1
    assert len(upstream.calls(body["model"])) == 1


def test_a_response_killed_during_its_cancel_ends(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server().start(OUTLIVE_KILL_AT="after-commit-of-take-over")
    client = server.client
    conversation = client.create_conversation()
    with client.stream(upstream.model([text("Once "), HANG]), conversation=conversation) as stream:
        stream.read_delta("Once ")
        with pytest.raises((OSError, HTTPException)):
            client.cancel(stream.id)
    assert server.wait_exit() == -9
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert body["status"] in ("incomplete", "cancelled")
    check_conversation(client, conversation, [body])


# -- without visible output: run again


def test_a_run_without_visible_output_is_run_again(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = make_server().start()
    client = server.client
    model = upstream.model([HANG], say("At", " last"))
    with client.stream(model) as stream:
        stream.read_type("response.in_progress")
        upstream.wait_call(model)
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "At last")
    assert body["outlive"] == {"attempts": 2, "resumed_at": []}


def test_a_run_fails_after_three_attempts_without_visible_output(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server().start()
    client = server.client
    conversation = client.create_conversation()
    model = upstream.model([HANG])
    response_id = client.submit(model, input="Why?", conversation=conversation)
    for attempt in (1, 2, 3):
        upstream.wait_call(model, attempt)
        assert client.retrieve(response_id)["status"] in ("queued", "in_progress")
        server.restart()
    body = check_ended(client, response_id)
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    reason = {"code": "worker_lost", "retryable": True}
    assert body["outlive"] == {"attempts": 3, "resumed_at": [], "reason": reason}
    assert len(upstream.calls(model)) == 3
    # A failed turn is removed from its conversation; its input stays with the response (D6).
    assert client.list_items(conversation) == []
    kept = client.get(f"/v1/responses/{response_id}/input_items").json()["data"]
    assert kept[0]["content"] == [{"type": "input_text", "text": "Why?"}]
    check_conversation(client, conversation, [body])


@pytest.mark.parametrize("on", ["", "postgres"])
@pytest.mark.parametrize(("shown", "status"), [([], "failed"), ([text("Once ")], "incomplete")])
def test_a_deadline_holds_across_a_kill(
    on: str, shown: list[Step], status: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill", on=on).start()
    model = upstream.model([*shown, HANG])
    began = time.monotonic()
    response_id = server.client.submit(model, outlive={"deadline_seconds": 6.0})
    upstream.wait_call(model)
    if shown:
        with server.client.follow(response_id) as stream:
            stream.read_through("response.output_text.delta")
    server.kill()
    server.start()
    upstream.wait_call(model, number=2)  # it runs again, and the deadline is still that of its admission
    body = check_ended(server.client, response_id, [])
    assert 5.9 < time.monotonic() - began < 11
    assert body["status"] == status
    assert body["outlive"]["reason"] == {"code": "deadline_exceeded", "retryable": False}
    if shown:
        assert body["incomplete_details"]["reason"] == "interrupted"


# -- with visible output: continue in place, or end as interrupted


def test_visible_output_that_cannot_be_continued_ends_as_interrupted(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server().start()
    client = server.client
    conversation = client.create_conversation()
    model = upstream.model([text("Once "), text("upon"), HANG])
    with client.stream(model, conversation=conversation) as stream:
        stream.read_delta("upon")
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"]["reason"] == "interrupted"
    assert "cannot continue" in body["incomplete_details"]["message"]
    assert (text_of(body), body["output"][0]["status"]) == ("Once upon", "incomplete")
    assert len(upstream.calls(model)) == 1
    check_conversation(client, conversation, [body])
    assert [item["role"] for item in client.list_items(conversation)] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("script", "last", "fields"),
    [
        ([text("Let me see. "), call(0, '{"city": "Pa', "call_1", "weather"), HANG], '{"city": "Pa', {}),
        ([reasoning("Hmm, "), reasoning("well"), HANG], "well", {}),
        ([text('{"answer": '), HANG], '{"answer": ', {"text": {"format": {"type": "json_object"}}}),
    ],
    ids=["an open call", "open reasoning", "JSON"],
)
def test_only_plain_text_is_continued(
    script: list[Step], last: str, fields: dict[str, object], upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill").start()
    client = server.client
    model = upstream.model(script)
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
    with client.stream(model, tools=tools, **fields) as stream:
        stream.read_delta(last)
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert len(upstream.calls(model)) == 1


def test_visible_text_is_continued_in_place_under_the_same_cursor(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill").start()
    client = server.client
    conversation = client.create_conversation()
    first: list[Step] = [*map(text, PIECES[:10]), HANG]
    second: list[Step] = [*map(text, PIECES[10:15]), HANG]
    model = upstream.model(first, second, stream_words(PIECES))

    with client.stream(model, conversation=conversation, max_output_tokens=100) as stream:
        stream.read_delta(PIECES[9])
        server.restart()
        seen, resumed_at = stream.frames, [stream.last_number + 1]
    with client.follow(stream.id, after=stream.last_number) as again:
        again.read_delta(PIECES[14])
        server.restart()
        seen, resumed_at = seen + again.frames, [*resumed_at, again.last_number + 1]
    body = check_ended(client, stream.id, seen)

    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
    assert body["outlive"] == {"attempts": 3, "resumed_at": resumed_at}
    assert len(body["output"]) == 1
    bodies = upstream.bodies(model)
    assert bodies[1]["messages"][-1] == {"role": "assistant", "content": "".join(PIECES[:10])}
    assert bodies[2]["messages"][-1] == {"role": "assistant", "content": "".join(PIECES[:15])}
    assert [asked["max_tokens"] for asked in bodies] == [100, 90, 85]
    # 15 deltas of the first two attempts, and the 15 tokens that the last one reports.
    assert body["usage"]["output_tokens"] == 30
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + 30
    check_conversation(client, conversation, [body])


def test_a_text_that_makes_no_progress_is_continued_three_times_only(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill").start()
    client = server.client
    model = upstream.model([text("Once "), HANG], [HANG])
    with client.stream(model) as stream:
        stream.read_delta("Once ")
        for attempt in (2, 3, 4):
            server.restart()
            upstream.wait_call(model, attempt)
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert len(upstream.calls(model)) == 4


# -- many runs


def test_a_thousand_interrupted_runs_are_recovered_at_once_within_the_limit(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server().start()
    client = server.client
    hanging, gate = upstream.model([HANG]), Gate()
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(client.submit(hanging) for _ in range(125))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1000
    upstream.wait_call(hanging, 1000)
    server.kill()
    upstream.on(hanging, [gate, *say("Here")])

    server.flags += ["--max-running", "50"]
    server.start()
    upstream.wait_call(hanging, 1050)
    newcomer = client.submit(upstream.model(say("Me too")))
    assert client.retrieve(newcomer)["status"] == "queued"
    assert len(upstream.calls(hanging)) == 1050, "recovery keeps to the limit"
    gate.open()
    for response_id in [*ids, newcomer]:
        assert client.wait_ended(response_id)["status"] == "completed"
    assert len(upstream.calls(hanging)) == 2000
    server.kill()
    check_file(server.database)


def test_followers_resume_after_the_restart_of_their_server(upstream: FakeUpstream, make_server: MakeServer) -> None:
    """A client that reconnects with its cursor sees one stream without a gap."""
    server = make_server(continuation="prefill").start()
    client = server.client
    gate = Gate()
    model = upstream.model([*map(text, PIECES[:3]), HANG], stream_words(PIECES, before=[gate]))
    first = client.stream(model)
    first.read_delta(PIECES[2])
    followers: list[EventStream] = [client.follow(first.id) for _ in range(3)]
    for follower in followers:
        follower.read_delta(PIECES[2])
    server.restart()
    resumed = [client.follow(first.id, after=stream.last_number) for stream in (first, *followers)]
    gate.open()
    for before, after in zip([first, *followers], resumed, strict=True):
        assert before.read() is None and before.cut
        before.close()
        check_ended(client, first.id, before.frames + after.read_all().frames)
