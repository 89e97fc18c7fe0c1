"""The client against a server other than Outlive, which answers and refuses as OpenAI does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from outlive.client import (
    ConnectionLost,
    ResponseStream,
    RetryPolicy,
    StreamStats,
    Token,
    create_and_poll,
    poll,
    resume,
    stream,
)
from tests.client.stub import DROP, Reply, Stub, event, refuse, response

CREATED = event(0, "response.created")


@pytest.fixture
def other_client(stub: Stub) -> Iterator[OpenAI]:
    with OpenAI(base_url=stub.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture
def sleeps() -> list[float]:
    return []


@pytest.fixture
def fast_policy(sleeps: list[float]) -> RetryPolicy:
    return RetryPolicy(sleep=sleeps.append, jitter=lambda: 1.0)


def numbers(events: ResponseStream) -> list[int]:
    return [each.sequence_number for each in events]


def test_background_stream_resumes_after_the_last_event(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy
) -> None:
    stub.script(
        Reply(events=[CREATED, event(1), event(2)]),
        DROP,
        Reply(events=[event(3), event(4, "response.completed")]),
    )
    assert numbers(stream(other_client, model="m", input="Hi", retry_policy=fast_policy)) == [0, 1, 2, 3, 4]
    assert stub.requests == ["POST /responses", *["GET /responses/resp_1?starting_after=2&stream=true"] * 2]


@pytest.mark.parametrize("status", [400, 404])
def test_stream_too_old_to_resume_is_polled_and_ends_with_its_terminal_event(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy, sleeps: list[float], status: int
) -> None:
    ended = response("completed", output=[])
    stub.script(
        Reply(events=[CREATED, event(1), event(2)]),
        refuse(status, "This response cannot be streamed any more."),
        Reply(response("in_progress"), openai_poll_after_ms="1500"),
        Reply(ended),
    )
    stats = StreamStats()
    events = list(stream(other_client, model="m", input="Hi", retry_policy=fast_policy, stats=stats))
    assert [each.sequence_number for each in events] == [0, 1, 2, 3]
    assert isinstance(events[-1], openai.types.responses.ResponseCompletedEvent)
    assert events[-1].response.to_dict() == ended
    assert stats.fell_back and sleeps[-1] == 1.5


def test_cancelled_response_that_is_polled_ends_with_a_terminal_event(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy
) -> None:
    stub.script(refuse(400), Reply(response("cancelled")))
    (only,) = resume(other_client, Token("resp_1", 4), retry_policy=fast_policy)
    assert (str(only.type), only.sequence_number) == ("response.cancelled", 5)


def test_broken_post_is_retried_by_the_sdk_alone(stub: Stub, fast_policy: RetryPolicy) -> None:
    stub.script(DROP, DROP, refuse(404))
    with OpenAI(base_url=stub.base_url, api_key="any", max_retries=1) as client:
        events = stream(client, model="m", input="Hi", retry_policy=fast_policy)
        with pytest.raises(openai.APIConnectionError):
            list(events)
    posts = [headers for method, _, headers in stub.asked if method == "POST"]
    assert [headers["x-stainless-retry-count"] for headers in posts] == ["0", "1"]
    assert len({headers["idempotency-key"] for headers in posts}) == 1


def test_stream_cut_before_its_first_event_raises(stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy) -> None:
    stub.script(Reply(events=[]))
    with pytest.raises(ConnectionLost, match="response's id"):
        list(stream(other_client, model="m", input="Hi", retry_policy=fast_policy))
    assert stub.requests == ["POST /responses"]


def test_error_event_in_a_stream_is_followed_by_the_terminal_event(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy
) -> None:
    error = {"type": "error", "sequence_number": 2, "code": "server_error", "message": "Oh.", "param": None}
    stub.script(Reply(events=[CREATED, event(1), error]), *[Reply(events=[])] * 3, Reply(response("failed")))
    events = list(stream(other_client, model="m", input="Hi", retry_policy=fast_policy))
    assert [each.type for each in events[-2:]] == ["error", "response.failed"]


def test_events_that_a_server_replays_are_delivered_once(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy
) -> None:
    whole = [CREATED, event(1), event(2), event(3, "response.completed")]
    stub.script(Reply(events=whole[:3]), Reply(events=whole))
    assert numbers(stream(other_client, model="m", input="Hi", retry_policy=fast_policy)) == [0, 1, 2, 3]


def test_arguments_of_create_are_sent_with_later_gets_too(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy
) -> None:
    stub.script(Reply(events=[CREATED]), refuse(400), Reply(response("completed")))
    given: Any = {"include": ["reasoning.encrypted_content"], "extra_headers": {"x-tenant": "a"}}
    given |= {"extra_query": {"api-version": "1"}, "stream_options": {"include_obfuscation": False}}
    list(stream(other_client, model="m", input="Hi", retry_policy=fast_policy, **given))
    _, follow, get = stub.asked
    encrypted = "include%5B%5D=reasoning.encrypted_content"
    read = f"{encrypted}&include_obfuscation=false&starting_after=0&stream=true&api-version=1"
    assert follow[1] == f"/v1/responses/resp_1?{read}"
    assert get[1] == f"/v1/responses/resp_1?{encrypted}&api-version=1"
    assert all(headers["x-tenant"] == "a" and "idempotency-key" not in headers for _, _, headers in (follow, get))


def test_polling_follows_the_header_and_never_asks_the_server_to_wait(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy, sleeps: list[float]
) -> None:
    stub.script(
        Reply(response("queued"), openai_poll_after_ms="2000"),
        Reply(response("in_progress")),
        refuse(500),
        DROP,
        refuse(429, retry_after="7"),
        Reply(response("completed")),
    )
    assert create_and_poll(other_client, model="m", input="Hi", retry_policy=fast_policy).status == "completed"
    assert sleeps == [2.0, 1.0, 0.25, 0.5, 7.0]
    assert stub.requests == ["POST /responses", *["GET /responses/resp_1"] * 5]


def test_async_polling_keeps_an_explicit_interval(stub: Stub, sleeps: list[float]) -> None:
    stub.script(
        Reply(response("queued"), openai_poll_after_ms="2000"),
        Reply(response("in_progress"), openai_poll_after_ms="2000"),
        Reply(response("completed")),
    )

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    async def run() -> str | None:
        async with AsyncOpenAI(base_url=stub.base_url, api_key="any", max_retries=0) as client:
            policy = RetryPolicy(sleep=sleep)
            ended = await create_and_poll(client, model="m", input="Hi", poll_interval_seconds=0.4, retry_policy=policy)
            return ended.status

    assert asyncio.run(run()) == "completed"
    assert sleeps == [0.4, 0.4]


@pytest.mark.parametrize(("status", "error"), [(401, openai.AuthenticationError), (404, openai.NotFoundError)])
def test_refused_request_raises_the_sdks_own_error(
    stub: Stub, other_client: OpenAI, fast_policy: RetryPolicy, status: int, error: type[Exception]
) -> None:
    stub.script(refuse(status))
    with pytest.raises(error):
        poll(other_client, "resp_1", retry_policy=fast_policy)
    assert len(stub.asked) == 1


def test_stream_continues_with_the_next_event_after_an_interrupted_call(stub: Stub, other_client: OpenAI) -> None:
    stub.script(Reply(events=[CREATED, event(1)]), Reply(events=[event(2), event(3, "response.completed")]))
    interruptions = [KeyboardInterrupt()]

    def sleep(seconds: float) -> None:
        if interruptions:
            raise interruptions.pop()

    events = stream(other_client, model="m", input="Hi", retry_policy=RetryPolicy(sleep=sleep))
    assert [next(events).sequence_number, next(events).sequence_number] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(events)
    assert numbers(events) == [2, 3]


def test_cancelled_submit_is_not_repeated_to_another_server(stub: Stub) -> None:
    stub.script(Reply(events=[], hang="0.5"), refuse(404))

    async def sleep(seconds: float) -> None:
        pass

    async def run() -> None:
        async with AsyncOpenAI(base_url=stub.base_url, api_key="any", max_retries=0) as client:
            events = stream(client, model="m", input="Hi", retry_policy=RetryPolicy(sleep=sleep))
            submit = asyncio.ensure_future(anext(events))
            while not stub.requests:
                await asyncio.sleep(0.005)
            submit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submit
            with pytest.raises(ConnectionLost, match="interrupted"):
                await anext(events)

    asyncio.run(run())
    assert [request.partition(" ")[0] for request in stub.requests] == ["POST", "GET"]
