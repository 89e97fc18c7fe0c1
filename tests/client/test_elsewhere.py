"""Against a server that is not ours, with OpenAI's answers and OpenAI's refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from outlive.client import (
    ConnectionLost,
    Patience,
    Progress,
    ResponseStream,
    Token,
    create_and_poll,
    poll,
    resume,
    stream,
)
from tests.client.stub import DROP, Reply, Stub, event, refuse, response

CREATED = event(0, "response.created")


@pytest.fixture
def elsewhere(stub: Stub) -> Iterator[OpenAI]:
    with OpenAI(base_url=stub.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture
def naps() -> list[float]:
    return []


@pytest.fixture
def quick(naps: list[float]) -> Patience:
    return Patience(sleep=naps.append, jitter=lambda: 1.0)


def numbers(events: ResponseStream) -> list[int]:
    return [each.sequence_number for each in events]


def test_a_background_stream_is_resumed_after_the_last_event(stub: Stub, elsewhere: OpenAI, quick: Patience) -> None:
    stub.script(
        Reply(events=[CREATED, event(1), event(2)]),
        DROP,
        Reply(events=[event(3), event(4, "response.completed")]),
    )
    assert numbers(stream(elsewhere, model="m", input="Hi", patience=quick)) == [0, 1, 2, 3, 4]
    assert stub.requests == ["POST /responses", *["GET /responses/resp_1?starting_after=2&stream=true"] * 2]


@pytest.mark.parametrize("status", [400, 404])
def test_a_stream_too_old_to_resume_is_polled_and_ends_with_its_terminal_event(
    stub: Stub, elsewhere: OpenAI, quick: Patience, naps: list[float], status: int
) -> None:
    ended = response("completed", output=[])
    stub.script(
        Reply(events=[CREATED, event(1), event(2)]),
        refuse(status, "This response cannot be streamed any more."),
        Reply(response("in_progress"), openai_poll_after_ms="1500"),
        Reply(ended),
    )
    progress = Progress()
    events = list(stream(elsewhere, model="m", input="Hi", patience=quick, progress=progress))
    assert [each.sequence_number for each in events] == [0, 1, 2, 3]
    assert isinstance(events[-1], openai.types.responses.ResponseCompletedEvent)
    assert events[-1].response.to_dict() == ended
    assert progress.fell_back and naps[-1] == 1.5


def test_a_cancelled_response_that_is_polled_ends_with_an_event_too(
    stub: Stub, elsewhere: OpenAI, quick: Patience
) -> None:
    stub.script(refuse(400), Reply(response("cancelled")))
    (only,) = resume(elsewhere, Token("resp_1", 4), patience=quick)
    assert (str(only.type), only.sequence_number) == ("response.cancelled", 5)


def test_a_post_that_breaks_is_left_to_the_sdk(stub: Stub, quick: Patience) -> None:
    stub.script(DROP, DROP, refuse(404))
    with OpenAI(base_url=stub.base_url, api_key="any", max_retries=1) as client:
        events = stream(client, model="m", input="Hi", patience=quick)
        with pytest.raises(openai.APIConnectionError):
            list(events)
    posts = [headers for method, _, headers in stub.asked if method == "POST"]
    assert [headers["x-stainless-retry-count"] for headers in posts] == ["0", "1"]
    assert len({headers["idempotency-key"] for headers in posts}) == 1


def test_a_stream_cut_before_it_says_which_response_it_is_is_an_error(
    stub: Stub, elsewhere: OpenAI, quick: Patience
) -> None:
    stub.script(Reply(events=[]))
    with pytest.raises(ConnectionLost, match="which response"):
        list(stream(elsewhere, model="m", input="Hi", patience=quick))
    assert stub.requests == ["POST /responses"]


def test_an_error_in_the_stream_is_followed_by_how_the_response_ended(
    stub: Stub, elsewhere: OpenAI, quick: Patience
) -> None:
    error = {"type": "error", "sequence_number": 2, "code": "server_error", "message": "Oh.", "param": None}
    stub.script(Reply(events=[CREATED, event(1), error]), *[Reply(events=[])] * 3, Reply(response("failed")))
    events = list(stream(elsewhere, model="m", input="Hi", patience=quick))
    assert [each.type for each in events[-2:]] == ["error", "response.failed"]


def test_a_server_that_replays_everything_repeats_nothing(stub: Stub, elsewhere: OpenAI, quick: Patience) -> None:
    whole = [CREATED, event(1), event(2), event(3, "response.completed")]
    stub.script(Reply(events=whole[:3]), Reply(events=whole))
    assert numbers(stream(elsewhere, model="m", input="Hi", patience=quick)) == [0, 1, 2, 3]


def test_what_was_given_to_create_goes_along_where_it_matters(stub: Stub, elsewhere: OpenAI, quick: Patience) -> None:
    stub.script(Reply(events=[CREATED]), refuse(400), Reply(response("completed")))
    given: Any = {"include": ["reasoning.encrypted_content"], "extra_headers": {"x-tenant": "a"}}
    given |= {"extra_query": {"api-version": "1"}, "stream_options": {"include_obfuscation": False}}
    list(stream(elsewhere, model="m", input="Hi", patience=quick, **given))
    _, follow, get = stub.asked
    encrypted = "include%5B%5D=reasoning.encrypted_content"
    read = f"{encrypted}&include_obfuscation=false&starting_after=0&stream=true&api-version=1"
    assert follow[1] == f"/v1/responses/resp_1?{read}"
    assert get[1] == f"/v1/responses/resp_1?{encrypted}&api-version=1"
    assert all(headers["x-tenant"] == "a" and "idempotency-key" not in headers for _, _, headers in (follow, get))


def test_polling_honours_the_header_and_never_asks_to_wait(
    stub: Stub, elsewhere: OpenAI, quick: Patience, naps: list[float]
) -> None:
    stub.script(
        Reply(response("queued"), openai_poll_after_ms="2000"),
        Reply(response("in_progress")),
        refuse(500),
        DROP,
        refuse(429, retry_after="7"),
        Reply(response("completed")),
    )
    assert create_and_poll(elsewhere, model="m", input="Hi", patience=quick).status == "completed"
    assert naps == [2.0, 1.0, 0.25, 0.5, 7.0]
    assert stub.requests == ["POST /responses", *["GET /responses/resp_1"] * 5]


def test_async_polling_keeps_to_an_explicit_interval(stub: Stub, naps: list[float]) -> None:
    stub.script(
        Reply(response("queued"), openai_poll_after_ms="2000"),
        Reply(response("in_progress"), openai_poll_after_ms="2000"),
        Reply(response("completed")),
    )

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    async def run() -> str | None:
        async with AsyncOpenAI(base_url=stub.base_url, api_key="any", max_retries=0) as client:
            patience = Patience(sleep=nap)
            ended = await create_and_poll(client, model="m", input="Hi", poll_interval_seconds=0.4, patience=patience)
            return ended.status

    assert asyncio.run(run()) == "completed"
    assert naps == [0.4, 0.4]


@pytest.mark.parametrize(("status", "error"), [(401, openai.AuthenticationError), (404, openai.NotFoundError)])
def test_what_the_server_refuses_stays_the_sdks_own_error(
    stub: Stub, elsewhere: OpenAI, quick: Patience, status: int, error: type[Exception]
) -> None:
    stub.script(refuse(status))
    with pytest.raises(error):
        poll(elsewhere, "resp_1", patience=quick)
    assert len(stub.asked) == 1


def test_an_interrupted_call_goes_on_with_the_next_event(stub: Stub, elsewhere: OpenAI) -> None:
    stub.script(Reply(events=[CREATED, event(1)]), Reply(events=[event(2), event(3, "response.completed")]))
    interruptions = [KeyboardInterrupt()]

    def sleep(seconds: float) -> None:
        if interruptions:
            raise interruptions.pop()

    events = stream(elsewhere, model="m", input="Hi", patience=Patience(sleep=sleep))
    assert [next(events).sequence_number, next(events).sequence_number] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(events)
    assert numbers(events) == [2, 3]


def test_a_cancelled_submit_is_not_repeated_to_a_stranger(stub: Stub) -> None:
    async def nap(seconds: float) -> None:
        pass

    async def run() -> None:
        async with AsyncOpenAI(base_url=stub.base_url, api_key="any", max_retries=0) as client:
            events = stream(client, model="m", input="Hi", patience=Patience(sleep=nap))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.1)
            with pytest.raises(ConnectionLost, match="interrupted"):
                await anext(events)

    stub.script(Reply(events=[], hang="0.5"), refuse(404))
    asyncio.run(run())
    assert [request.partition(" ")[0] for request in stub.requests] == ["POST", "GET"]
