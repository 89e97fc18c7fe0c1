"""An upstream that itself speaks the Responses API, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.dialects.embedded.backend import LocalModel
from outlive.dialects.responses.backend import ResponsesBackend
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import ModelCall, Upstream
from tests.dialects.playback import assert_sound, make_call, output, wrap
from tests.support import responses_events as theirs
from tests.support.responses_events import answer, frames, message, reasoning
from tests.support.responses_upstream import ResponsesUpstream, say, steps
from tests.support.scripting import CountingIds
from tests.support.upstream import CUT, HANG, Gate, Refuse, Step, Whole

KEY = "sk-very-secret-key"
HELLO: Json = {"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
THOUGHT = reasoning("Hm.")(0)[1]
SAID = message("Hello")(0)[1]


@pytest.fixture(scope="module")
def server() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as running:
        yield running


def call_of(model: str, items: list[Json] | None = None, **fields: Any) -> ModelCall:
    made = make_call(items=items or [HELLO], **fields)
    return ModelCall(model, made.request, made.items, made.resume)


class Session:
    """A backend that may be asked several times."""

    def __init__(self, server: ResponsesUpstream, **fields: Any) -> None:
        given = {"name": "test", "url": server.url, "dialect": "responses", "key": KEY}
        self.pool = HttpPool()
        self.backend = ResponsesBackend(Upstream(**{**given, **fields}), self.pool, CountingIds())

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()
        self.pool.close()
        await asyncio.sleep(0.01)  # aborted connections are gone only after a turn of the loop

    async def ask(self, call: ModelCall) -> list[Json]:
        return await read(self.backend, call)


async def read(backend: ResponsesBackend, call: ModelCall) -> list[Json]:
    translator = backend.translator(call)
    async with aclosing(backend.stream(call)) as stream:
        drafts = [d async for chunks in stream for chunk in chunks for d in translator.feed(chunk)]
    closing, ending = translator.end()
    return wrap(drafts + closing, ending, call)


def ask(server: ResponsesUpstream, call: ModelCall, **fields: Any) -> list[Json]:
    async def main() -> list[Json]:
        async with Session(server, **fields) as session:
            return await session.ask(call)

    return asyncio.run(main())


def fault_of(server: ResponsesUpstream, *script: Step, **fields: Any) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        ask(server, call_of(server.model(list(script))), **fields)
    return caught.value


# -- answers


def test_a_streamed_answer_arrives(server: ResponsesUpstream) -> None:
    events = ask(server, call_of(server.model(steps(reasoning("Hm."), message("Hel", "lo")))))
    assert_sound(events)
    assert output(events)[1]["content"][0]["text"] == "Hello"
    assert events[-1]["response"]["usage"] == theirs.USAGE


def test_the_request_carries_the_key_and_store_false(server: ResponsesUpstream) -> None:
    model = server.model()
    ask(server, call_of(model), headers={"X-Team": "a"})
    (asked,) = server.calls(model)
    assert asked.path == "/v1/responses"
    assert (asked.headers["authorization"], asked.headers["x-team"]) == (f"Bearer {KEY}", "a")
    assert (asked.body["store"], asked.body["stream"]) == (False, True)


def test_the_stream_ends_with_the_terminal_event(server: ResponsesUpstream) -> None:
    events = ask(server, call_of(server.model([*say("Hi"), HANG])))
    assert output(events)[0]["content"][0]["text"] == "Hi"


def test_done_after_the_terminal_event_is_accepted(server: ResponsesUpstream) -> None:
    assert ask(server, call_of(server.model([*say("Hi"), b"data: [DONE]\n\n"])))[-1]["type"] == "response.completed"


def test_an_answer_that_is_no_stream_is_read(server: ResponsesUpstream) -> None:
    whole = answer(message("Hello"))[-1]["response"]
    assert_sound(ask(server, call_of(server.model([Whole(whole)]))))


def test_frames_may_be_cut_anywhere(server: ResponsesUpstream) -> None:
    raw = b"".join(frames(answer(message("Grüße", "!")))).replace(b"\n", b"\r\n")
    pieces: list[Step] = [raw[n : n + 11] for n in range(0, len(raw), 11)]
    assert output(ask(server, call_of(server.model(pieces))))[0]["content"][0]["text"] == "Grüße!"


def test_closing_the_stream_closes_the_connection(server: ResponsesUpstream) -> None:
    model = server.model([*say("Hi")[:5], HANG])

    async def main() -> None:
        async with Session(server) as session, aclosing(session.backend.stream(call_of(model))) as stream:
            async for _ in stream:
                break

    asyncio.run(main())
    server.wait_call(model).wait_disconnected()


# -- faults


def test_a_key_in_an_error_of_status_200_is_hidden(server: ResponsesUpstream) -> None:
    error = {"code": "server_error", "message": f"Wrong key {KEY}"}
    failed = {"object": "response", "status": "failed", "output": [], "error": error}
    scripts: list[Step] = [
        *frames([{"type": "error", **error}, {"type": "response.failed", "response": failed}]),
        Whole({"error": error}),
        Whole(failed),
    ]
    for step in scripts:
        assert fault_of(server, step).message.endswith("Wrong key ***")


def test_a_stream_that_is_cut_is_a_fault(server: ResponsesUpstream) -> None:
    assert "broke" in fault_of(server, *say("Hi")[:5], CUT).message
    assert "without saying that it was over" in fault_of(server, *say("Hi")[:-1]).message


def test_a_cut_after_the_terminal_event_is_ignored(server: ResponsesUpstream) -> None:
    assert ask(server, call_of(server.model([*say("Hi"), CUT])))[-1]["type"] == "response.completed"


def test_a_silent_server_is_a_fault(server: ResponsesUpstream) -> None:
    fault = fault_of(server, *say("Hi")[:5], HANG, silence_seconds=0.1)
    assert fault.timed_out
    assert "silent" in fault.message


@pytest.mark.parametrize(
    ("refusal", "code", "retryable"),
    [
        (Refuse(400, {"error": {"message": "Bad input", "code": "invalid_value"}}), "invalid_prompt", False),
        (Refuse(401, {"error": {"message": f"Wrong key {KEY}"}}), "server_error", False),
        (Refuse(429, {"error": {"message": "Slow down"}}, retry_after="7"), "rate_limit_exceeded", True),
        (Refuse(503, "down"), "server_error", True),
    ],
)
def test_refusals_are_faults(server: ResponsesUpstream, refusal: Refuse, code: str, retryable: bool) -> None:
    fault = fault_of(server, refusal)
    assert (fault.code, fault.retryable) == (code, retryable)
    assert KEY not in fault.message
    assert fault.retry_after == (7 if refusal.status == 429 else None)


# -- encrypted reasoning


NO_SUCH = Refuse(400, {"error": {"message": "Encrypted content is not supported with this model.", "code": None}})
NOT_MINE = Refuse(
    400, {"error": {"message": "The encrypted content for item rs_up1 could not be verified.", "code": "invalid_value"}}
)


def test_a_model_that_refuses_encrypted_reasoning_is_remembered(server: ResponsesUpstream) -> None:
    model = server.model([NO_SUCH], say("Hi"))

    async def main() -> None:
        async with Session(server) as session:
            for _ in range(2):
                await session.ask(call_of(model))

    asyncio.run(main())
    assert [body.get("include") for body in server.bodies(model)] == [["reasoning.encrypted_content"], None, None]


def test_reasoning_that_another_server_encrypted_is_left_out(server: ResponsesUpstream) -> None:
    model = server.model([NOT_MINE], say("Hi"))

    async def main() -> None:
        async with Session(server) as session:
            for _ in range(2):
                await session.ask(call_of(model, [HELLO, THOUGHT, SAID, {**HELLO, "id": "msg_9"}]))

    asyncio.run(main())
    kinds = [[item["type"] for item in body["input"]] for body in server.bodies(model)]
    with_thought = ["message", "reasoning", "message", "message"]
    assert kinds == [with_thought, ["message"] * 3, with_thought]
    assert [len(body.get("include", [])) for body in server.bodies(model)] == [1, 0, 1]


def test_other_refusals_are_not_retried(server: ResponsesUpstream) -> None:
    model = server.model([Refuse(400, {"error": {"message": "Bad input"}})])
    with pytest.raises(UpstreamFault):
        ask(server, call_of(model))
    assert len(server.calls(model)) == 1


# -- the rest


def test_models_are_listed_and_chats_are_passed_through(server: ResponsesUpstream) -> None:
    async def main() -> tuple[list[Json], int, bytes]:
        async with Session(server, models={"fast": "first-model"}) as session:
            listed = await session.backend.models()
            passed = await session.backend.pass_through({"model": "chatty", "messages": [], "stream": False})
            return listed, passed.status, b"".join([piece async for piece in passed.body()])

    server.on("chatty", [Whole({"object": "chat.completion"})])
    listed, status, raw = asyncio.run(main())
    assert [model["id"] for model in listed] == ["fast", "first-model", "second-model"]
    assert (status, json.loads(raw)) == (200, {"object": "chat.completion"})
    assert server.calls("chatty")[0].path == "/v1/chat/completions"


def test_tokens_are_counted_where_the_server_can(server: ResponsesUpstream) -> None:
    model = server.model([Whole({"object": "response.input_tokens", "input_tokens": 42})])

    async def main() -> list[int | None]:
        async with Session(server) as session:
            counted = await session.backend.count(call_of(model, instructions="Be brief.", max_output_tokens=20))
            server.on(model, [Refuse(404)])
            return [counted, await session.backend.count(call_of(model))]

    assert asyncio.run(main()) == [42, None]
    asked = server.calls(model)[0]
    assert asked.path == "/v1/responses/input_tokens"
    assert asked.body.keys() == {"model", "input", "instructions"}


def test_slow_chunks_are_yielded_as_they_come(server: ResponsesUpstream) -> None:
    gate = Gate()
    model = server.model([*say("a", "b")[:5], gate, *say("a", "b")[5:]])

    async def main() -> int:
        reads = 0
        async with Session(server) as session, aclosing(session.backend.stream(call_of(model))) as stream:
            async for chunks in stream:
                reads += 1
                if any(b'"delta": "a"' in chunk for chunk in chunks):
                    gate.open()
        return reads

    assert asyncio.run(main()) >= 2


# -- a real server: the embedded model's engine speaks Responses too


def test_a_real_server_answers_and_continues_a_text() -> None:
    question: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Count to ten."}]}

    async def main() -> None:
        model = LocalModel(lambda _: None)
        pool = HttpPool()
        try:
            given = await model.start()
            upstream = msgspec.structs.replace(given, dialect="responses", reasoning_input="plain")
            backend = ResponsesBackend(upstream, pool, CountingIds())
            call = make_call(items=[question], max_output_tokens=16, temperature=0.0)
            events = await read(backend, call)
            assert_sound(events)
            said = output(events)[0]["content"][0]["text"]
            usage = events[-1]["response"]["usage"]
            assert said
            # It does not say that its limit was reached, but its count does.
            assert events[-1]["type"] == f"response.{'incomplete' if usage['output_tokens'] >= 16 else 'completed'}"
            assert await backend.count(call) == usage["input_tokens"]
            resume = OpenText("msg_old", 0, 0, said[: len(said) // 2], 4)
            more = await read(backend, make_call(resume, [question], max_output_tokens=24, temperature=0.0))
            done = next(event["item"] for event in more if event["type"] == "response.output_item.done")
            assert (done["id"], done["content"][0]["text"].startswith(resume.text)) == ("msg_old", True)
            assert len(done["content"][0]["text"]) > len(resume.text)
        finally:
            pool.close()
            await model.stop()

    asyncio.run(main())
