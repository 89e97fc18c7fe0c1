"""The Chat Completions upstream, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.backend import ChatBackend
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import Backend, ModelCall, Upstream
from outlive.testing import answer, call_chunk, error_chunk, finish_chunk, text_chunk, usage_chunk
from tests.dialects.playback import assert_sound, make_call, output, wrap
from tests.dialects.upstream import Answer, cut, hang, serve, streaming, whole
from tests.support.scripting import CountingIds

KEY = "sk-very-secret-key"
HELLO = {"type": "message", "role": "user", "content": "Hi"}
DONE = b"data: [DONE]\n\n"


def sse(*chunks: bytes) -> bytes:
    return b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)


async def run(backend: Backend, call: ModelCall) -> list[Json]:
    translator = backend.translator(call)
    drafts = [d async for payloads in backend.stream(call) for payload in payloads for d in translator.feed(payload)]
    closing, ending = translator.end()
    return wrap(drafts + closing, ending, call)


def ask(reply: Answer, call: ModelCall | None = None, **fields: Any) -> list[Json]:
    """Return the events of one call to a server with this answer."""

    async def main() -> list[Json]:
        async with serve(reply, **fields) as (backend, _):
            return await run(backend, call or make_call(items=[HELLO]))

    return asyncio.run(main())


def fault_of(reply: Answer, **fields: Any) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        ask(reply, **fields)
    return caught.value


# -- answers


def test_a_streamed_answer_arrives() -> None:
    events = ask(streaming(sse(*answer("Hel", "lo")) + DONE))
    assert_sound(events)
    assert output(events)[0]["content"][0]["text"] == "Hello"
    assert events[-1]["response"]["usage"]["output_tokens"] == 2


def test_one_read_is_one_yield() -> None:
    async def main() -> list[list[bytes]]:
        async with serve(streaming(sse(*answer("a", "b", "c")) + DONE)) as (backend, _):
            return [payloads async for payloads in backend.stream(make_call(items=[HELLO]))]

    assert asyncio.run(main()) == [answer("a", "b", "c")]


def test_frames_may_be_cut_anywhere() -> None:
    raw = sse(*answer("Hel", "lo")).replace(b"\n", b"\r\n") + b": ping\r\n\r\n" + DONE
    events = ask(streaming(*[raw[n : n + 7] for n in range(0, len(raw), 7)]))
    assert output(events)[0]["content"][0]["text"] == "Hello"


def test_a_stream_may_end_without_done() -> None:
    assert ask(streaming(sse(*answer("a"))))[-1]["type"] == "response.completed"


def test_an_answer_that_is_no_stream_is_read() -> None:
    called = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hello", "tool_calls": [called]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    events = ask(whole({"object": "chat.completion", "model": "x", "choices": [choice], "usage": usage}))
    assert_sound(events)
    assert [item["type"] for item in output(events)] == ["message", "function_call"]
    assert events[-1]["response"]["usage"]["total_tokens"] == 7


def test_a_whole_answer_drops_the_text_sent_before() -> None:
    message = {"role": "assistant", "content": "Once upon a time"}
    reply = whole({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def main() -> list[bytes]:
        async with serve(reply, continuation="prefill") as (backend, _):
            call = make_call(OpenText("msg_1", 0, 0, "Once upon", 2), [HELLO])
            translator = backend.translator(call)
            chunks = [chunk async for payloads in backend.stream(call) for chunk in payloads]
            return [draft.frame(0) for draft in translator.feed(chunks[0])]

    (frame,) = asyncio.run(main())
    assert b'"delta":" a time"' in frame


# -- requests


def test_the_request_carries_key_headers_and_query() -> None:
    async def main(**fields: Any) -> web.Request:
        async with serve(streaming(sse(*answer("a")) + DONE), **fields) as (backend, server):
            await run(backend, make_call(items=[HELLO]))
            assert server.bodies == [
                {
                    "model": "m",
                    "messages": [{"role": "user", "content": "Hi"}],
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            ]
            return server.requests[0]

    request = asyncio.run(main(key=KEY, headers={"X-Team": "a"}, query={"api-version": "1"}))
    assert (request.method, request.path, request.query_string) == ("POST", "/v1/chat/completions", "api-version=1")
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["X-Team"] == "a"
    assert request.headers["Content-Type"] == "application/json"
    request = asyncio.run(main(key=KEY, key_header="api-key"))
    assert request.headers["api-key"] == KEY
    assert "Authorization" not in request.headers
    assert "Authorization" not in asyncio.run(main()).headers
    assert asyncio.run(main(headers={"user-agent": "mine"})).headers.getall("User-Agent") == ["mine"]


def test_a_connection_is_reused() -> None:
    async def main() -> int:
        async with serve(streaming(sse(*answer("a")), DONE)) as (backend, server):
            for _ in range(3):
                await run(backend, make_call(items=[HELLO]))
                await asyncio.gather(*backend._draining)
            return len(server.connections)

    assert asyncio.run(main()) == 1


def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        if len(seen) == 1:
            seen.append("closed")
            await cut(request)
            return web.Response()
        seen.append("answered")
        return await streaming(sse(*answer("a")) + DONE)(request)

    seen: list[str] = []

    async def main() -> None:
        async with serve(reply) as (backend, _):
            for _ in range(2):
                await run(backend, make_call(items=[HELLO]))

    asyncio.run(main())
    assert seen == ["answered", "closed", "answered"]


def test_an_input_that_cannot_be_sent_is_refused_before_anything_is_sent() -> None:
    async def main() -> None:
        async with serve(streaming()) as (backend, server):
            shown = {"type": "message", "role": "user", "content": [{"type": "input_smell"}]}
            with pytest.raises(InvalidRequest, match="input_smell"):
                backend.check(CreateResponse(model="m", input=[shown]))
            with pytest.raises(InvalidRequest, match="compaction") as caught:
                backend.check(CreateResponse(model="m", input=[HELLO, {"type": "compaction"}]))
            assert caught.value.param == "input[1].type"
            backend.check(CreateResponse(model="m", input=[HELLO]))
            assert not server.requests

    asyncio.run(main())


# -- faults


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "invalid_prompt", False),
        (404, "invalid_prompt", False),
        (422, "invalid_prompt", False),
        (408, "server_error", True),
        (429, "rate_limit_exceeded", True),
        (500, "server_error", True),
        (503, "server_error", True),
    ],
)
def test_a_refusal_is_a_fault_by_its_status(status: int, code: str, retryable: bool) -> None:
    fault = fault_of(whole({"error": {"message": "too much", "type": "x"}}, status))
    assert (fault.code, fault.status, fault.retryable) == (code, status, retryable)
    assert "too much" in fault.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_becomes_a_fault_without_status(status: int) -> None:
    fault = fault_of(whole({"error": {"message": f"Wrong key {KEY}"}}, status), key=KEY)
    assert (fault.code, fault.status, fault.retryable) == ("server_error", None, False)
    assert "refused this server's key" in fault.message
    assert KEY not in fault.message


def test_secrets_are_never_in_messages() -> None:
    secrets = {"key": KEY, "headers": {"X-Token": 'header"secret'}, "query": {"code": "q1!z"}}
    text = f'You sent {KEY}, header"secret and q1!z.'
    fault = fault_of(whole({"error": {"message": text}}, 400), **secrets)
    assert fault.message.endswith("You sent ***, *** and ***.")


def test_secrets_are_hidden_in_errors_of_a_stream() -> None:
    fault = fault_of(streaming(sse(error_chunk(f"Wrong key {KEY}")) + DONE), key=KEY)
    assert fault.message.endswith("Wrong key ***")


@pytest.mark.parametrize(
    "body",
    [
        {"error": "oh no"},
        {"detail": "oh no"},
        {"object": "error", "message": "oh no"},
        [{"error": {"message": "oh no"}}],
        "oh no",
    ],
)
def test_messages_are_found_in_any_envelope(body: Any) -> None:
    assert "oh no" in fault_of(whole(body, 500)).message


def test_an_html_page_is_not_quoted() -> None:
    fault = fault_of(whole("<html>" * 1000, 502, Content_Type="text/html"))
    assert "html" not in fault.message
    assert "Bad Gateway" in fault.message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "1.5"}, 1.5),
        ({"retry_after_ms": "250"}, 0.25),
        ({"Retry_After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry_After": "soon"}, None),
        ({"retry_after_ms": "inf"}, 86_400.0),
        ({"retry_after_ms": "nan"}, None),
        ({"Retry_After": "9" * 400}, 86_400.0),
        ({"Retry_After": f"Wed, 21 Oct {'9' * 20} 07:28:30 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert fault_of(whole({}, 429, **headers)).retry_after == seconds


def test_a_redirect_is_not_followed() -> None:
    fault = fault_of(whole({}, 307, Location="http://127.0.0.1:1/"))
    assert "307" in fault.message
    assert not fault.retryable


@pytest.mark.parametrize("reply", [whole("<html></html>", Content_Type="text/html"), whole({"object": "list"})])
def test_a_body_that_is_no_completion_is_a_fault(reply: Answer) -> None:
    assert "answered with something" in fault_of(reply).message


def test_an_error_instead_of_a_completion_is_a_fault() -> None:
    assert fault_of(whole({"error": {"message": "no", "code": 429}})).code == "rate_limit_exceeded"


def test_an_error_in_the_stream_is_a_fault() -> None:
    assert "oh" in fault_of(streaming(sse(text_chunk("a"), error_chunk("oh")))).message


def test_an_unreachable_server_is_a_fault() -> None:
    async def main() -> None:
        upstream = Upstream(name="gone", url=f"http://127.0.0.1:1/v1?code={KEY}", key=KEY)
        backend = ChatBackend(upstream, HttpPool(), CountingIds())
        await run(backend, make_call(items=[HELLO]))

    with pytest.raises(UpstreamFault, match=r"\(gone\) could not be reached: .*refused") as caught:
        asyncio.run(main())
    assert caught.value.retryable
    assert KEY not in str(caught.value)


def test_a_malformed_url_is_a_fault() -> None:
    assert not fault_of(streaming(), url="nowhere").retryable


def test_silence_is_a_fault() -> None:
    fault = fault_of(streaming(sse(text_chunk("a")), then=hang), silence_seconds=0.1)
    assert fault.timed_out
    assert "silent for 0.1 s" in fault.message


def test_silence_before_the_answer_is_a_fault() -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        await hang(request)
        return web.Response()

    assert fault_of(reply, silence_seconds=0.1).timed_out


def test_comments_count_against_silence() -> None:
    async def ping(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(6):
            await asyncio.sleep(0.2)
            await response.write(b": ping\n\n")
        await response.write(sse(*answer("a")) + DONE)
        return response

    assert ask(ping, silence_seconds=1.0)[-1]["type"] == "response.completed"


def test_a_cut_connection_is_a_fault() -> None:
    fault = fault_of(streaming(sse(text_chunk("a")), then=cut))
    assert fault.retryable
    assert "broke" in fault.message


def test_a_cut_after_the_finish_is_ignored() -> None:
    events = ask(streaming(sse(text_chunk("a"), finish_chunk()), sse(usage_chunk()), then=cut))
    assert events[-1]["type"] == "response.completed"


def test_a_stream_that_stops_is_a_fault() -> None:
    assert "without a finish" in fault_of(streaming(sse(text_chunk("a")) + DONE)).message


# -- forwarding


class Recorder:
    """Take forwarded chunks, and read the rest: all payloads in order, and the forwarded ones."""

    def __init__(self, *wants_turn: bool) -> None:
        self.chunks: list[bytes] = []
        self.pushed: list[bytes] = []
        self._wants_turn = list(wants_turn)

    def on_chunks(self, payloads: list[bytes]) -> bool:
        assert payloads
        self.chunks += payloads
        self.pushed += payloads
        return not (self._wants_turn and self._wants_turn.pop())

    async def record(self, reply: Answer, **fields: Any) -> None:
        async with serve(reply, **fields) as (backend, _):
            await self.record_from(backend)

    async def record_from(self, backend: Backend) -> None:
        async for payloads in backend.stream(make_call(items=[HELLO]), self.on_chunks):
            self.chunks += payloads

    def paced(self, *pieces: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Answer:
        """An answer whose every piece waits for the one before it, so that all but the first are forwarded."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for piece in pieces:
                before = len(self.chunks)
                await response.write(piece)
                while len(self.chunks) == before:
                    await asyncio.sleep(0)
            if then is not None:
                await then(request)
            return response

        return answer


CHUNKS = answer("Hel", "lo, ", "world")
ANSWER = sse(*CHUNKS[:2]) + b": ping\r\n\r\n" + sse(*CHUNKS[2:]).replace(b"\n", b"\r\n") + DONE


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, len(ANSWER) - 1)), st.lists(st.booleans(), max_size=8), st.booleans())
@example(set(range(1, len(ANSWER))), [False, True, True, False], True)
def test_forwarded_and_yielded_chunks_are_all_chunks_for_every_cut(
    cuts: set[int], wants_turn: list[bool], says_done: bool
) -> None:
    raw = ANSWER if says_done else ANSWER.removesuffix(DONE)
    edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(edges)]
    recorder = Recorder(*wants_turn)
    asyncio.run(recorder.record(streaming(*pieces)))
    assert recorder.chunks == CHUNKS


def test_chunks_after_the_first_read_are_forwarded() -> None:
    recorder = Recorder()
    asyncio.run(recorder.record(recorder.paced(*(sse(each) for each in CHUNKS))))
    assert (recorder.chunks, recorder.pushed) == (CHUNKS, CHUNKS[1:])


@pytest.mark.parametrize("reads", [1, 2])
def test_the_stream_ends_at_once_when_the_upstream_is_done(reads: int) -> None:
    async def main() -> None:
        async with asyncio.timeout(5):
            await recorder.record(recorder.paced(*([sse(CHUNKS[0])] * (reads - 1)), sse(*CHUNKS[1:]) + DONE, then=hang))

    recorder = Recorder()
    asyncio.run(main())
    assert recorder.chunks[-1] == CHUNKS[-1]


def test_the_stream_yields_when_the_receiver_returns_false() -> None:
    async def main() -> None:
        reply = recorder.paced(sse(text_chunk("a")), sse(text_chunk("b")), then=hang)
        async with (
            asyncio.timeout(5),
            serve(reply) as (backend, _),
            aclosing(backend.stream(make_call(items=[HELLO]), recorder.on_chunks)) as stream,
        ):
            recorder.chunks += await anext(stream)
            assert await anext(stream) == []

    recorder = Recorder(True)
    asyncio.run(main())
    assert recorder.pushed == [text_chunk("b")]


def test_an_error_of_the_receiver_is_raised_and_ends_the_call() -> None:
    class Critic(Recorder):
        def on_chunks(self, payloads: list[bytes]) -> bool:
            super().on_chunks(payloads)
            raise UpstreamFault("What nonsense.")

    recorder = Critic()

    async def main() -> None:
        reply = recorder.paced(sse(text_chunk("a")), sse(text_chunk("b")), then=hang)
        async with serve(reply) as (backend, server):
            with pytest.raises(UpstreamFault, match="nonsense"):
                await recorder.record_from(backend)
            async with asyncio.timeout(5):
                await server.left.wait()

    asyncio.run(main())
    assert recorder.pushed == [text_chunk("b")]


def test_a_cut_while_forwarding_is_a_fault_before_the_finish_only() -> None:
    said = [sse(text_chunk("a")), sse(text_chunk("b"))]
    recorder = Recorder()
    with pytest.raises(UpstreamFault, match="broke"):
        asyncio.run(recorder.record(recorder.paced(*said, then=cut)))
    assert recorder.chunks == [text_chunk("a"), text_chunk("b")]
    recorder = Recorder()
    asyncio.run(recorder.record(recorder.paced(*said, sse(finish_chunk()), sse(usage_chunk()), then=cut)))
    assert recorder.pushed == [text_chunk("b"), finish_chunk(), usage_chunk()]


def test_silence_while_forwarding_is_a_fault() -> None:
    recorder = Recorder()
    with pytest.raises(UpstreamFault, match=r"silent for 0\.1 s") as caught:
        asyncio.run(
            recorder.record(recorder.paced(sse(text_chunk("a")), sse(text_chunk("b")), then=hang), silence_seconds=0.1)
        )
    assert caught.value.timed_out
    assert recorder.pushed == [text_chunk("b")]


# -- closing


def test_closing_the_stream_closes_the_connection() -> None:
    async def main() -> None:
        async with serve(streaming(sse(text_chunk("a")), then=hang)) as (backend, server):
            async with aclosing(backend.stream(make_call(items=[HELLO]))) as stream:
                assert await anext(stream) == [text_chunk("a")]
            async with asyncio.timeout(5):
                await server.left.wait()

    asyncio.run(main())


def test_cancelling_a_run_closes_the_connection() -> None:
    async def main() -> None:
        async with serve(streaming(sse(text_chunk("a")), then=hang)) as (backend, server):
            seen = asyncio.Event()

            async def reading() -> None:
                async with aclosing(backend.stream(make_call(items=[HELLO]))) as stream:
                    async for _ in stream:
                        seen.set()

            task = asyncio.create_task(reading())
            await seen.wait()
            task.cancel()
            async with asyncio.timeout(5):
                await server.left.wait()

    asyncio.run(main())


# -- models


def test_models_are_listed_with_aliases() -> None:
    reply = whole(
        {"data": [{"id": "big", "created": 5, "owned_by": None, "meta": {}}, {"id": "small"}, {"nonsense": 1}]}
    )

    async def main() -> list[Json]:
        async with serve(reply, models={"best": "big", "gone": "missing"}) as (backend, server):
            models = await backend.models()
            assert server.requests[0].path == "/v1/models"
            return models

    assert asyncio.run(main()) == [
        {"id": "best", "object": "model", "created": 5, "owned_by": "test"},
        {"id": "gone", "object": "model", "created": 0, "owned_by": "test"},
        {"id": "big", "object": "model", "created": 5, "owned_by": "test"},
        {"id": "small", "object": "model", "created": 0, "owned_by": "test"},
    ]


@pytest.mark.parametrize("reply", [whole({}, 500), whole("junk"), whole({"data": 3}), whole([])])
def test_a_server_that_lists_nothing_has_its_aliases(reply: Answer) -> None:
    async def main() -> list[str]:
        async with serve(reply, models={"best": "big"}) as (backend, _):
            return [model["id"] for model in await backend.models()]

    assert asyncio.run(main()) == ["best"]


# -- passing through


async def read(body: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in body])


def test_a_request_is_passed_through() -> None:
    raw = sse(*answer("a"), call_chunk(0, "call_a", "f", "{}")) + DONE

    async def main() -> None:
        async with serve(streaming(raw), sends_store=True) as (backend, server):
            passed = await backend.pass_through({"model": "big", "messages": [], "stream": True, "odd": 1})
            assert passed.status == 200
            assert passed.headers["content-type"] == "text/event-stream"
            assert await read(passed.body()) == raw
            assert server.bodies == [{"model": "big", "messages": [], "stream": True, "odd": 1, "store": False}]

    asyncio.run(main())


def test_refusals_are_passed_through() -> None:
    async def main() -> None:
        headers = {"Retry_After": "3", "x_ratelimit_limit_requests": "9", "Set_Cookie": "a=b"}
        async with serve(whole({"error": {"message": "slow"}}, 429, **headers)) as (backend, server):
            passed = await backend.pass_through({"model": "m"})
            assert passed.status == 429
            assert passed.headers["retry-after"] == "3"
            assert passed.headers["x-ratelimit-limit-requests"] == "9"
            assert "set-cookie" not in passed.headers
            assert b"slow" in await read(passed.body())
            assert "store" not in server.bodies[0]

    asyncio.run(main())


def test_a_refused_key_is_not_passed_through() -> None:
    async def main() -> None:
        async with serve(whole({"error": {"message": f"Wrong key {KEY}"}}, 401), key=KEY) as (backend, _):
            with pytest.raises(UpstreamFault, match="refused this server's key"):
                await backend.pass_through({"model": "m"})

    asyncio.run(main())


def test_closing_a_relayed_answer_closes_the_connection() -> None:
    async def main() -> None:
        async with serve(streaming(b"data: 1\n\n", then=hang)) as (backend, server):
            passed = await backend.pass_through({"model": "m"})
            async with aclosing(passed.body()) as body:
                assert await anext(body) == b"data: 1\n\n"
            async with asyncio.timeout(5):
                await server.left.wait()

    asyncio.run(main())


def test_a_relayed_answer_that_breaks_is_a_fault() -> None:
    async def main() -> None:
        async with serve(streaming(b"data: 1\n\n", then=cut)) as (backend, _):
            passed = await backend.pass_through({"model": "m"})
            with pytest.raises(UpstreamFault, match="broke"):
                await read(passed.body())

    asyncio.run(main())
