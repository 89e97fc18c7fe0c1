"""kill -9 at armed points, and what a client finds afterwards (D9)."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException

import pytest

from tests.crash.conftest import Serve
from tests.crash.traces import database_holds
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import EventStream, HttpClient, text_of
from tests.support.scripts import stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Gate, Step, call, reasoning, say, text
from tests.support.waiting import wait_until

STORY = words(30)

# Each transaction of a streamed turn in a conversation, just before and just after it is on disk.
ARMED = [
    f"{when}-commit-of-{what}"
    for what in ("admit", "append", "append:2", "append:9", "close")
    for when in ("before", "after")
]


ARMED_ON_POSTGRES = [point for point in ARMED if point.endswith(("admit", "append:2", "close"))]


@pytest.mark.parametrize(
    ("on", "point"), [("", point) for point in ARMED] + [("postgres", point) for point in ARMED_ON_POSTGRES]
)
def test_no_event_that_was_seen_is_lost_or_changed_by_a_kill(
    on: str, point: str, upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server(continuation="prefill", on=on).start(OUTLIVE_KILL_AT=point)
    client = HttpClient(server.port)
    conversation = client.create_conversation(items=[{"role": "user", "content": "Before all that"}])
    seen: list[bytes] = []
    try:
        with client.stream(upstream.model(stream_words(STORY, pause=0.003)), conversation=conversation) as stream:
            stream.read_all()
            assert stream.cut
            seen = stream.frames
    except (OSError, HTTPException):
        pass  # killed before the stream began
    assert server.wait_exit() == -9

    server.start()
    listed = client.get(f"/v1/responses?conversation={conversation}").json()["data"]
    ids = [response["id"] for response in listed]
    assert len(ids) == (0 if point == "before-commit-of-admit" else 1)
    turns = []
    for response_id in ids:
        body = check_ended(client, response_id, seen)
        assert body["status"] == "completed"
        assert text_of(body) == "".join(STORY)
        turns.append(body)
    check_conversation(client, conversation, turns)
    server.kill()
    if not on:
        check_file(server.database)


@pytest.mark.parametrize(
    "point", ["before-commit-of-claim", "after-commit-of-claim", "after-commit-of-save-checkpoint"]
)
def test_a_kill_in_the_middle_of_recovery_is_recovered_from_as_well(
    point: str, upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    gate = Gate()
    model = upstream.model([text("w0 "), text("w1 "), gate], stream_words(STORY))
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == "w1 ")
        server.kill()
        seen, response_id = stream.frames, stream.id
    server.launch(OUTLIVE_KILL_AT=point)
    assert server.wait_exit() == -9
    server.start()
    body = check_ended(client, response_id, seen)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
    assert len(body["output"]) == 1


def test_a_stream_aborted_at_its_very_first_event_runs_to_its_end(upstream: FakeUpstream, client: HttpClient) -> None:
    gate = Gate()
    with client.stream(upstream.model(stream_words(STORY, before=[gate]))) as stream:
        stream.read()
    gate.open()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))


def test_a_large_request_killed_before_it_was_accepted_leaves_nothing(
    upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server().start(OUTLIVE_KILL_AT="after-commit-of-stage:2")
    client = HttpClient(server.port)
    with pytest.raises((OSError, HTTPException)):
        client.create(upstream.model(), input="large-4720 " * 100_000)
    assert server.wait_exit() == -9
    assert database_holds(b"large-4720", server)
    server.start()
    assert client.get("/v1/responses").json()["data"] == []
    wait_until(lambda: not database_holds(b"large-4720", server), "what was written ahead is gone")
    # And accepted, it survives as any other.
    model = upstream.model([HANG], say("Long"))
    response_id = client.submit(model, input="large-4721 " * 100_000)
    upstream.wait_call(model)
    server.restart()
    assert check_ended(client, response_id)["status"] == "completed"
    assert upstream.wait_call(model, 2).messages == [{"role": "user", "content": "large-4721 " * 100_000}]


@pytest.mark.parametrize("headers", [{"idempotency-key": "k1"}, {"x-stainless-retry-count": "0"}], ids=["key", "retry"])
def test_a_create_repeated_after_the_kill_that_ate_its_answer_finds_the_same_response(
    headers: dict[str, str], upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server().start(OUTLIVE_KILL_AT="after-commit-of-admit")
    client = HttpClient(server.port)
    body = {"model": upstream.model(say("Just", " once")), "input": "Hi"}
    with pytest.raises((OSError, HTTPException)):
        client.post("/v1/responses", body, **headers)
    assert server.wait_exit() == -9
    server.start()
    again = headers | ({"x-stainless-retry-count": "1"} if "x-stainless-retry-count" in headers else {})
    answer = client.post("/v1/responses", body, **again)
    assert (answer.status, text_of(answer.json())) == (200, "Just once")
    assert len(client.get("/v1/responses").json()["data"]) == 1
    assert len(upstream.calls(body["model"])) == 1


def test_a_kill_in_the_middle_of_a_cancel_leaves_nothing_hanging(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server().start(OUTLIVE_KILL_AT="after-commit-of-take-over")
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    with client.stream(upstream.model([text("Once "), HANG]), conversation=conversation) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        with pytest.raises((OSError, HTTPException)):
            client.post(f"/v1/responses/{stream.id}/cancel")
    assert server.wait_exit() == -9
    server.start()
    body = check_ended(client, stream.id, stream.frames)
    assert body["status"] in ("incomplete", "cancelled")
    check_conversation(client, conversation, [body])


# -- nothing visible: run again


def test_a_run_with_nothing_visible_is_run_again(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server().start()
    client = HttpClient(server.port)
    model = upstream.model([HANG], say("At", " last"))
    with client.stream(model) as stream:
        stream.read_type("response.in_progress")
        upstream.wait_call(model)
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "At last")
    assert body["outlive"] == {"attempts": 2, "resumed_at": []}


def test_after_three_attempts_with_nothing_visible_it_has_failed(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server().start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    model = upstream.model([HANG])
    response_id = client.submit(model, input="Why?", conversation=conversation)
    for attempt in (1, 2, 3):
        upstream.wait_call(model, attempt)
        assert client.retrieve(response_id)["status"] in ("queued", "in_progress")
        server.restart()
    body = check_ended(client, response_id)
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert body["outlive"] == {"attempts": 3, "resumed_at": []}
    assert len(upstream.calls(model)) == 3
    # A failed turn is taken out of its conversation; its input stays with the response (D6).
    assert client.list_items(conversation) == []
    kept = client.get(f"/v1/responses/{response_id}/input_items").json()["data"]
    assert kept[0]["content"] == [{"type": "input_text", "text": "Why?"}]
    check_conversation(client, conversation, [body])


# -- visible: continue in place, or say that it was interrupted


def test_a_visible_answer_that_cannot_continue_ends_as_interrupted(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server().start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    model = upstream.model([text("Once "), text("upon"), HANG])
    with client.stream(model, conversation=conversation) as stream:
        stream.read_until(lambda event: event.get("delta") == "upon")
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
    ids=["a growing call", "a growing thought", "JSON"],
)
def test_only_plain_text_is_continued(
    script: list[Step], last: str, fields: dict[str, object], upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    model = upstream.model(script)
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
    with client.stream(model, tools=tools, **fields) as stream:
        stream.read_until(lambda event: event.get("delta") == last)
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert len(upstream.calls(model)) == 1


def test_a_visible_text_goes_on_in_place_under_the_same_cursor(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    conversation = client.create_conversation()
    first: list[Step] = [*map(text, STORY[:10]), HANG]
    second: list[Step] = [*map(text, STORY[10:15]), HANG]
    model = upstream.model(first, second, stream_words(STORY))

    with client.stream(model, conversation=conversation, max_output_tokens=100) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[9])
        server.restart()
        seen, joint = stream.frames, stream.last_number + 1
    with client.follow(stream.id, after=joint - 1) as again:
        again.read_until(lambda event: event.get("delta") == STORY[14])
        server.restart()
        seen, second_joint = seen + again.frames, again.last_number + 1
    body = check_ended(client, stream.id, seen)

    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
    assert body["outlive"] == {"attempts": 3, "resumed_at": [joint, second_joint]}
    assert len(body["output"]) == 1
    bodies = upstream.bodies(model)
    assert bodies[1]["messages"][-1] == {"role": "assistant", "content": "".join(STORY[:10])}
    assert bodies[2]["messages"][-1] == {"role": "assistant", "content": "".join(STORY[:15])}
    assert [asked["max_tokens"] for asked in bodies] == [100, 90, 85]
    # 15 deltas of the first two attempts, and the 15 tokens that the last one reports.
    assert body["usage"]["output_tokens"] == 30
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + 30
    check_conversation(client, conversation, [body])


def test_a_text_that_gets_no_further_is_not_continued_for_ever(upstream: FakeUpstream, make_server: Serve) -> None:
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    model = upstream.model([text("Once "), HANG], [HANG])
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        for attempt in (2, 3, 4):
            server.restart()
            upstream.wait_call(model, attempt)
        server.restart()
        body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], body["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert len(upstream.calls(model)) == 4


# -- many


def test_a_thousand_cut_off_runs_are_taken_up_at_once_and_within_the_limit(
    upstream: FakeUpstream, make_server: Serve
) -> None:
    server = make_server().start()
    client = HttpClient(server.port)
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
    began = time.monotonic()
    upstream.wait_call(hanging, 1050)
    assert time.monotonic() - began < 2, "recovery starts at once"
    newcomer = client.submit(upstream.model(say("Me too")))
    assert client.retrieve(newcomer)["status"] == "queued"
    assert len(upstream.calls(hanging)) == 1050, "and keeps to the limit"
    gate.open()
    for response_id in [*ids, newcomer]:
        assert client.wait_ended(response_id)["status"] == "completed"
    assert len(upstream.calls(hanging)) == 2000
    server.kill()
    check_file(server.database)


def test_following_streams_survive_the_restart_of_their_server(upstream: FakeUpstream, make_server: Serve) -> None:
    """What a client that reconnects with its cursor sees: one stream, whatever happened in between."""
    server = make_server(continuation="prefill").start()
    client = HttpClient(server.port)
    gate = Gate()
    model = upstream.model([*map(text, STORY[:3]), HANG], stream_words(STORY, before=[gate]))
    first = client.stream(model)
    first.read_until(lambda event: event.get("delta") == STORY[2])
    followers: list[EventStream] = [client.follow(first.id) for _ in range(3)]
    for follower in followers:
        follower.read_until(lambda event: event.get("delta") == STORY[2])
    server.restart()
    resumed = [client.follow(first.id, after=stream.last_number) for stream in (first, *followers)]
    gate.open()
    for before, after in zip([first, *followers], resumed, strict=True):
        assert before.read() is None and before.cut
        before.close()
        check_ended(client, first.id, before.frames + after.read_all().frames)
