"""The real SDK, sync and async, against a live server that is cut off, delayed, killed and restarted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

from outlive.client import (
    UNSUCCESSFUL,
    ConnectionLost,
    PollTimeout,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
    RetryPolicy,
    StreamStats,
    check,
    create_and_poll,
    poll,
    resume,
    stream,
)
from tests.client.test_cuts import SCRIPT, Json, check_whole, read_all, replay
from tests.support.proxy import Cut, Delay, DropAnswer, Fault, Proxy, RefuseConnection
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Refuse, ending, finish, say, text, usage


@pytest.fixture
def killable(upstream: FakeUpstream, tmp_path: Path) -> Iterator[OutliveServer]:
    """A server that the test may kill."""
    with OutliveServer(tmp_path / "killable", upstream.url) as running:
        yield running


def client_of(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="any", max_retries=0)


# -- streams


def test_stream_cut_repeatedly_is_delivered_whole(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy
) -> None:
    faults: list[Fault] = [
        Cut(7, 1, "close"),
        DropAnswer(),
        Cut(5, 40, "clean"),
        RefuseConnection(),
        Cut(0),
        Cut(31, 0),
        Delay(0.05),
    ]
    with Proxy(server.port, *faults) as proxy:
        got, stats = read_all(client.with_options(base_url=proxy.base_url), upstream.model(SCRIPT), fast_policy)
    check_whole(server, got, stats)
    assert proxy.accepted == len(faults)
    assert stats.faults == 5  # an end without an error counts as no fault


@pytest.mark.parametrize("first", [DropAnswer(), RefuseConnection(), Cut(0, 0, "reset"), Cut(0, 5, "clean")])
def test_post_with_a_lost_answer_is_repeated_without_a_second_model_call(
    client: OpenAI,
    server: OutliveServer,
    upstream: FakeUpstream,
    fast_policy: RetryPolicy,
    first: Fault,
) -> None:
    model = upstream.model(SCRIPT)
    with Proxy(server.port, first) as proxy:
        got, stats = read_all(client.with_options(base_url=proxy.base_url), model, fast_policy)
    check_whole(server, got, stats)
    assert stats.resubmits == 1
    assert len(upstream.calls(model)) == 1


def test_stream_survives_a_killed_and_restarted_server(
    killable: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate], say("never"))
    stats = StreamStats()
    with client_of(killable.base_url) as client:
        events = stream(client, model=model, input="Hi", retry_policy=fast_policy, stats=stats)
        got = []
        for event in events:
            got.append(event.to_dict(mode="json"))
            if event.type == "response.output_text.delta" and event.delta == "upon ":
                killable.kill()
                threading.Thread(target=killable.start).start()
        final = events.get_final_response()
    assert got == replay(killable, final.id)
    assert final.status == "incomplete" and final.output_text == "Once upon "
    assert stats.resumes >= 1 and not stats.fell_back
    assert events.token is not None and events.token.ended


def test_cancelled_reads_of_an_async_stream_lose_no_event(
    killable: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])

    async def read() -> None:
        async with AsyncOpenAI(base_url=killable.base_url, api_key="any", max_retries=0) as client:
            events = stream(client, model=model, input="Hi", retry_policy=fast_policy)
            got: list[Json] = []
            while not got or got[-1]["type"] != "response.output_text.delta":
                got.append((await anext(events)).to_dict(mode="json"))
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.05)
            gate.open()
            got += [event.to_dict(mode="json") async for event in events]
            final = await events.get_final_response()
            assert got == await asyncio.to_thread(replay, killable, final.id)
            assert final.output_text == "Once upon."
            assert events.stats.resumes >= 1

    asyncio.run(read())
    assert len(upstream.calls(model)) == 1


def test_token_resumes_in_another_client_and_a_bare_id_restarts(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream
) -> None:
    with stream(client, model=upstream.model(SCRIPT), input="Hi") as events:
        assert events.token is None and events.response_id is None
        first = [next(events).to_dict(mode="json") for _ in range(20)]
        token = str(events.token)
    assert list(events) == []  # closed
    with client_of(server.base_url) as other:
        rest = [event.to_dict(mode="json") for event in resume(other, token)]
        assert events.response_id is not None
        assert first + rest == replay(server, events.response_id)
        assert [event.to_dict(mode="json") for event in resume(other, events.response_id)] == first + rest
        assert poll(other, token).output_text == poll(other, events.response_id).output_text


def test_ended_token_gives_an_empty_stream_and_the_final_response(client: OpenAI, upstream: FakeUpstream) -> None:
    events = stream(client, model=upstream.model(), input="Hi")
    final = events.get_final_response()
    assert events.token is not None
    again = resume(client, events.token)
    assert list(again) == []
    assert again.get_final_response() == final


def test_token_of_a_deleted_response_raises_not_found(client: OpenAI, upstream: FakeUpstream) -> None:
    events = stream(client, model=upstream.model(SCRIPT), input="Hi")
    next(events)
    token = events.token
    events.close()
    assert token is not None
    client.responses.delete(token.response_id)
    with pytest.raises(NotFoundError):
        list(resume(client, token))


def test_stream_of_a_cancelled_response_ends_with_that_response(client: OpenAI, upstream: FakeUpstream) -> None:
    gate = Gate()
    events = stream(client, model=upstream.model([text("Once "), gate, *ending()]), input="Hi")
    for event in events:
        if event.type == "response.output_text.delta":
            assert events.response_id is not None
            client.responses.cancel(events.response_id)
    gate.open()
    final = events.get_final_response()
    assert final.status == "cancelled" and final.output_text == "Once "
    with pytest.raises(ResponseCancelled):
        check(final)


def test_unstored_stream_raises_when_its_connection_breaks(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy
) -> None:
    with Proxy(server.port, Cut(9)) as proxy:
        through = client.with_options(base_url=proxy.base_url)
        events = stream(through, model=upstream.model(SCRIPT), input="Hi", store=False, retry_policy=fast_policy)
        with pytest.raises(ConnectionLost, match="store=False"):
            list(events)


# -- polling


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_polling_survives_a_killed_and_restarted_server(
    killable: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy, kind: str
) -> None:
    gate = Gate()
    model = upstream.model([gate], say("All ", "is ", "well."))
    stats = StreamStats()

    def restart() -> None:
        gate.wait_reached()
        killable.kill()
        time.sleep(0.3)  # so that some polls find no server
        killable.start()

    async def run() -> str:
        async with AsyncOpenAI(base_url=killable.base_url, api_key="any", max_retries=0) as client:
            ended = await create_and_poll(client, model=model, input="Hi", retry_policy=fast_policy, stats=stats)
            return ended.output_text

    thread = threading.Thread(target=restart)
    thread.start()
    if kind == "sync":
        with client_of(killable.base_url) as client:
            said = create_and_poll(client, model=model, input="Hi", retry_policy=fast_policy, stats=stats).output_text
    else:
        said = asyncio.run(run())
    thread.join()
    assert said == "All is well."
    assert stats.faults >= 1 and stats.resubmits == 0
    with client_of(killable.base_url) as client:
        assert len(client.get("/responses", cast_to=dict)["data"]) == 1


def test_poll_timeout_leaves_the_run_alone(client: OpenAI, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Later.")])
    began = time.monotonic()
    with pytest.raises(PollTimeout) as timeout:
        create_and_poll(client, model=model, input="Hi", max_wait_seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    gate.open()
    assert poll(client, timeout.value.response_id).output_text == "Later."


def test_held_get_needs_one_poll(client: OpenAI, upstream: FakeUpstream) -> None:
    gate = Gate()
    stats = StreamStats()
    threading.Timer(0.5, gate.open).start()
    ended = create_and_poll(client, model=upstream.model([gate, *say("Hi.")]), input="Hi", stats=stats)
    assert ended.output_text == "Hi."
    assert stats.outlive and stats.polls == 1
    assert stats.response_id == ended.id


def test_unsuccessful_responses_are_returned_unless_raise_on_names_them(client: OpenAI, upstream: FakeUpstream) -> None:
    failing = upstream.model([Refuse(400)])
    cut_short = upstream.model([text("Once"), finish("length"), usage()])
    assert create_and_poll(client, model=failing, input="Hi").status == "failed"
    assert create_and_poll(client, model=cut_short, input="Hi", raise_on=["failed"]).status == "incomplete"
    with pytest.raises(ResponseFailed) as failed:
        create_and_poll(client, model=failing, input="Hi", raise_on=UNSUCCESSFUL)
    assert failed.value.response.error is not None
    with pytest.raises(ResponseIncomplete, match="max_output_tokens"):
        create_and_poll(client, model=cut_short, input="Hi", raise_on=UNSUCCESSFUL)


def test_same_idempotency_key_attaches_to_the_same_response(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    both = [create_and_poll(client, model=model, input="Hi", idempotency_key="job-1") for _ in range(2)]
    events = list(stream(client, model=model, input="Hi", extra_headers={"idempotency-key": "job-2"}))
    again = list(stream(client, model=model, input="Hi", idempotency_key="job-2"))
    assert both[0] == both[1] and events == again
    assert len(upstream.calls(model)) == 2


# -- arguments


def test_invalid_arguments_are_refused_before_any_request() -> None:
    client = client_of("http://127.0.0.1:1/v1")
    with pytest.raises(TypeError, match="stream"):
        create_and_poll(client, stream=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="background"):
        create_and_poll(client, background=False)
    with pytest.raises(ValueError, match="raise_on takes"):
        poll(client, "resp_1", raise_on=["done"])
    with pytest.raises(ValueError, match="max_wait_seconds"):
        poll(client, "resp_1", max_wait_seconds=-1)
    with pytest.raises(TypeError, match="given twice"):
        stream(client, idempotency_key="a", extra_headers={"IDEMPOTENCY-KEY": "b"})
    with pytest.raises(TypeError, match="OpenAI"):
        poll("client", "resp_1")  # type: ignore[call-overload]
    client.close()
