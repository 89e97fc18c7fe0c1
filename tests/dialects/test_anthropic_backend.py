"""An upstream that speaks Anthropic's Messages API, over a real socket: asked strictly, read leniently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.recovery import OpenText
from outlive.dialects.anthropic.backend import AnthropicBackend
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import Backend, Ending, ModelCall, Upstream
from tests.dialects.playback import make_call
from tests.support.anthropic_upstream import PING, AnthropicUpstream, end, event, say, start, text
from tests.support.scripting import CountingIds
from tests.support.upstream import CUT, HANG, Gate, Pause, Refuse, Step, Whole

HELLO: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
THOUGHT: Json = {"type": "reasoning", "summary": [], "encrypted_content": "anthropic:signature:sig-1"}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT: Json = {"type": "function_call_output", "call_id": "c1", "output": "x"}
KEY = "sk-ant-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[AnthropicUpstream]:
    with AnthropicUpstream() as running:
        yield running


def ask(server: AnthropicUpstream, call: ModelCall, **fields: Any) -> tuple[list[AnyDraft], Ending]:
    async def main() -> tuple[list[AnyDraft], Ending]:
        pool = HttpPool()
        backend = make_backend(server, pool, **fields)
        translator = backend.translator(call)
        drafts: list[AnyDraft] = []
        try:
            async with aclosing(backend.stream(call)) as stream:
                async for chunks in stream:
                    for chunk in chunks:
                        drafts += translator.feed(chunk)
            closing, ending = translator.end()
            return drafts + closing, ending
        finally:
            await asyncio.gather(*backend._draining)
            await backend.close()
            pool.close()
            await asyncio.sleep(0)  # sockets are closed a moment later

    return asyncio.run(main())


def make_backend(server: AnthropicUpstream, pool: HttpPool, **fields: Any) -> AnthropicBackend:
    given = {"name": "claude", "url": server.url, "key": KEY, "key_header": "x-api-key", "developer_role": False}
    return AnthropicBackend(Upstream(**{**given, **fields}), pool, CountingIds())


def call_of(model: str, items: list[Json] | None = None, resume: OpenText | None = None, **fields: Any) -> ModelCall:
    made = make_call(resume, items or [HELLO], **fields)
    return ModelCall(model, made.request, made.items, made.resume)


def said(drafts: list[AnyDraft]) -> str:
    done = [draft for draft in drafts if isinstance(draft, Draft) and draft.type == "response.output_text.done"]
    return "".join(draft.fields["text"] for draft in done)


def fault_of(server: AnthropicUpstream, *steps: Step, **fields: Any) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        ask(server, call_of(server.model(steps)), **fields)
    assert KEY not in str(caught.value)
    return caught.value


def test_the_class_fulfils_the_backend_protocol(server: AnthropicUpstream) -> None:
    backend: Backend = make_backend(server, HttpPool())
    assert (backend.name, backend.continuation) == ("claude", "none")


def test_a_streamed_answer_arrives(server: AnthropicUpstream) -> None:
    model = server.model(say("Hel", "lo"))
    drafts, ending = ask(server, call_of(model))
    assert said(drafts) == "Hello"
    assert (ending.status, ending.model) == ("completed", "claude-test-1")
    (asked,) = server.calls(model)
    assert asked.path == "/v1/messages"
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in asked.headers


def test_headers_of_the_settings_override_the_dialects(server: AnthropicUpstream) -> None:
    model = server.model(say("a"))
    headers = {"Anthropic-Version": "2026-10-21", "anthropic-beta": "x"}
    ask(server, call_of(model), headers=headers, key_header="authorization")
    (asked,) = server.calls(model)
    assert (asked.headers["anthropic-version"], asked.headers["anthropic-beta"]) == ("2026-10-21", "x")
    assert asked.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("status", "kind", "code", "retryable"),
    [
        (400, "invalid_request_error", "invalid_prompt", False),
        (404, "not_found_error", "invalid_prompt", False),
        (413, "request_too_large", "invalid_prompt", False),
        (429, "rate_limit_error", "rate_limit_exceeded", True),
        (500, "api_error", "server_error", True),
        (504, "timeout_error", "server_error", True),
        (529, "overloaded_error", "server_error", True),
    ],
)
def test_an_error_status_becomes_a_fault_by_its_cause(
    server: AnthropicUpstream, status: int, kind: str, code: str, retryable: bool
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": f"no, {KEY}"}, "request_id": "req_1"}
    fault = fault_of(server, Refuse(status, body, retry_after="7"))
    assert (fault.code, fault.retryable, fault.status, fault.retry_after) == (code, retryable, status, 7.0)
    assert "no, ***" in fault.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_becomes_a_fault_without_status(server: AnthropicUpstream, status: int) -> None:
    fault = fault_of(
        server, Refuse(status, {"type": "error", "error": {"type": "authentication_error", "message": KEY}})
    )
    assert fault.status is None and not fault.retryable


def test_an_error_in_mid_stream_is_a_fault(server: AnthropicUpstream) -> None:
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    fault = fault_of(server, start(), *text(0, "a"), error)
    assert "Overloaded" in fault.message and fault.retryable


def test_a_key_in_an_error_of_status_200_is_hidden(server: AnthropicUpstream) -> None:
    error: Json = {"type": "overloaded_error", "message": f"Wrong key {KEY}"}
    for step in (event("error", error=error), Whole({"type": "error", "error": error})):
        assert fault_of(server, step).message.endswith("Wrong key ***")


def test_a_cut_is_a_fault_before_the_stop_reason_only(server: AnthropicUpstream) -> None:
    assert "broke" in fault_of(server, start(), *text(0, "a"), CUT).message
    gate = Gate()
    gate.open()
    model = server.model([start(), *text(0, "a"), end()[0], gate, CUT])
    assert said(ask(server, call_of(model))[0]) == "a"


def test_silence_is_a_fault_and_pings_prevent_it(server: AnthropicUpstream) -> None:
    assert fault_of(server, start(), *text(0, "a"), HANG, silence_seconds=0.3).timed_out
    pings = [step for _ in range(5) for step in (Pause(0.1), PING)]
    model = server.model([start(), *pings, *text(0, "a"), *end()])
    assert said(ask(server, call_of(model), silence_seconds=0.3)[0]) == "a"


def test_an_answer_that_is_no_stream_is_read(server: AnthropicUpstream) -> None:
    whole = {
        "type": "message",
        "model": "other",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
    }
    drafts, ending = ask(server, call_of(server.model([Whole(whole)])))
    assert (said(drafts), ending.model) == ("Hi", "other")


def test_a_connection_is_reused(server: AnthropicUpstream) -> None:
    model = server.model(say("a"))

    async def main() -> int:
        pool = HttpPool()
        backend = make_backend(server, pool)
        for _ in range(3):
            async for _ in backend.stream(call_of(model)):
                pass
            await asyncio.gather(*backend._draining)
        kept = sum(len(idle) for idle in pool._idle.values())
        await backend.close()
        pool.close()
        return kept

    assert asyncio.run(main()) == 1


def test_closing_the_stream_closes_the_connection(server: AnthropicUpstream) -> None:
    model = server.model([start(), *text(0, "a"), HANG])

    async def main() -> None:
        pool = HttpPool()
        backend = make_backend(server, pool)
        stream = backend.stream(call_of(model))
        await anext(stream)
        await stream.aclose()

    asyncio.run(main())
    server.wait_call(model).wait_disconnected()


# -- thoughts


def test_thoughts_of_earlier_turns_are_sent(server: AnthropicUpstream) -> None:
    model = server.model(say("a"))
    ask(server, call_of(model, [HELLO, THOUGHT, CALL, RESULT], tools=[{"type": "function", "name": "f"}]))
    (asked,) = server.calls(model)
    assert asked.messages[1]["content"][0] == {"type": "thinking", "thinking": "", "signature": "sig-1"}


def test_refused_thoughts_are_left_out_of_a_second_request(server: AnthropicUpstream) -> None:
    model = server.model(say("a"))
    strange = {**THOUGHT, "encrypted_content": "anthropic:signature:sig-of-another-conversation"}
    drafts, _ = ask(server, call_of(model, [HELLO, strange, CALL, RESULT], tools=[{"type": "function", "name": "f"}]))
    assert said(drafts) == "a"
    first, second = server.calls(model)
    assert [block["type"] for block in first.messages[1]["content"]] == ["thinking", "tool_use"]
    assert [block["type"] for block in second.messages[1]["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    "message",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to another conversation.",
        "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified",
        "messages.1: Expected `thinking`, but found `tool_use`. A final message must start with a thinking block.",
    ],
)
def test_refusals_of_thoughts_are_recognised(server: AnthropicUpstream, message: str) -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    model = server.model([Refuse(400, body)], say("a"))
    assert said(ask(server, call_of(model, [HELLO, THOUGHT, HELLO]))[0]) == "a"


def test_other_refusals_are_not_retried(server: AnthropicUpstream) -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    model = server.model([Refuse(400, body)])
    with pytest.raises(UpstreamFault):
        ask(server, call_of(model, [HELLO, THOUGHT, HELLO]))
    assert len(server.calls(model)) == 1


# -- the rest of the port


def test_an_answer_is_continued(server: AnthropicUpstream) -> None:
    model = server.model(say("three"))
    resume = OpenText("msg_9", 0, 0, "one, two, ", 4)
    drafts, _ = ask(server, call_of(model, resume=resume), continuation="prefill")
    assert said(drafts) == "one, two, three"
    (asked,) = server.calls(model)
    assert asked.messages[-1] == {"role": "assistant", "content": [{"type": "text", "text": "one, two,"}]}


def test_a_refused_prefill_is_a_fault(server: AnthropicUpstream) -> None:
    with pytest.raises(UpstreamFault, match="prefill") as caught:
        ask(server, call_of("claude-opus-5-5", resume=OpenText("msg_9", 0, 0, "one", 1)), continuation="prefill")
    assert not caught.value.retryable


def test_models_are_listed_as_openai_lists_them(server: AnthropicUpstream) -> None:
    async def main() -> list[Json]:
        pool = HttpPool()
        backend = make_backend(server, pool, models={"fast": "second-model"})
        models = await backend.models()
        pool.close()
        return models

    models = asyncio.run(main())
    assert [model["id"] for model in models] == ["fast", "first-model", "second-model"]
    assert all(set(model) == {"id", "object", "created", "owned_by"} for model in models)
    assert models[1]["created"] == 1771459200


def test_tokens_are_counted_by_the_api(server: AnthropicUpstream) -> None:
    model = server.model()

    async def main() -> tuple[int | None, int | None, int | None]:
        pool = HttpPool()
        backend = make_backend(server, pool)
        counted = await backend.count(call_of(model, instructions="Be kind."))
        windows = await backend.window("first-model"), await backend.window("nobody")
        pool.close()
        return counted, *windows

    assert asyncio.run(main()) == (42, 200_000, None)
    (asked,) = server.calls(model)
    assert asked.path == "/v1/messages/count_tokens"


def test_chat_completions_are_not_passed_through(server: AnthropicUpstream) -> None:
    with pytest.raises(InvalidRequest, match="/v1/responses") as caught:
        asyncio.run(make_backend(server, HttpPool()).pass_through({"model": "m"}))
    assert (caught.value.param, caught.value.code) == ("model", "unsupported_model")


def test_a_long_context_is_sent_whole(server: AnthropicUpstream) -> None:
    model = server.model(say("a"))
    ask(server, call_of(model, [HELLO] * 600))
    (asked,) = server.calls(model)
    assert len(asked.messages[0]["content"]) == 600
    assert json.dumps(asked.body)
