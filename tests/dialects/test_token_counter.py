"""Token counts and windows are read from the upstream; a missing number is None and delays nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.dialects import backend as http_backend
from outlive.dialects.transport import endpoint
from outlive.ports.backend import ModelCall
from tests.dialects.upstream import Answer, Server, hang, serve, streaming, whole

MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
TOOL = {"type": "function", "name": "f", "parameters": {}}
CALL = ModelCall("m", CreateResponse(model="m", input=[], instructions="Be kind.", tools=[TOOL]), [MESSAGE])


def count(answer: Answer, **fields: Any) -> tuple[int | None, Server]:
    async def go() -> tuple[int | None, Server]:
        async with serve(answer, **fields) as (backend, server):
            return await backend.count(CALL), server

    return asyncio.run(go())


def window(answer: Answer, model: str = "m", times: int = 1, **fields: Any) -> tuple[int | None, Server]:
    async def go() -> tuple[int | None, Server]:
        async with serve(answer, **fields) as (backend, server):
            found = [await backend.window(model) for _ in range(times)]
            assert len(set(found)) == 1
            return found[0], server

    return asyncio.run(go())


# -- counting


def test_llamacpp_counts_the_whole_request() -> None:
    tokens, server = count(whole({"object": "response.input_tokens", "input_tokens": 19}), tokenizer="llamacpp")
    assert tokens == 19
    assert server.requests[0].path == "/v1/chat/completions/input_tokens"
    (body,) = server.bodies
    assert [message["content"] for message in body["messages"]] == ["Be kind.", "Hi"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]
    assert body["stream"] is False


def test_vllm_counts_with_its_tokenize_endpoint() -> None:
    tokens, server = count(whole({"count": 23, "max_model_len": 4096, "tokens": [1, 2]}), tokenizer="vllm")
    assert tokens == 23
    assert server.requests[0].path == "/tokenize"
    (body,) = server.bodies
    assert set(body) == {"model", "messages", "tools", "add_generation_prompt"}


def test_an_upstream_without_a_tokenizer_is_not_asked() -> None:
    tokens, server = count(whole({"input_tokens": 19}))
    assert (tokens, server.requests) == (None, [])


@pytest.mark.parametrize(
    "answer",
    [
        whole({"error": {"message": "no such route"}}, status=404),
        whole({"input_tokens": "19"}),
        whole({"input_tokens": -1}),
        whole([19]),
        whole("nineteen"),
        whole("", status=500),
    ],
)
def test_an_answer_without_a_number_is_none(answer: Answer) -> None:
    assert count(answer, tokenizer="llamacpp")[0] is None


def test_a_silent_upstream_gives_none_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_FETCH_SECONDS", 0.05)
    assert count(streaming(then=hang), tokenizer="llamacpp")[0] is None
    assert count(whole({}), tokenizer="llamacpp", url="http://127.0.0.1:1/v1")[0] is None


# -- windows


def models(*entries: Json) -> Answer:
    return whole({"object": "list", "data": list(entries)})


def test_a_configured_window_is_not_asked_for() -> None:
    found, server = window(models({"id": "m", "max_model_len": 4096}), context_window=2048)
    assert (found, server.requests) == (2048, [])


@pytest.mark.parametrize(
    ("entry", "tokens"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"context_length": 200_000, "top_provider": {}}, 200_000),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),
        ({"max_context_length": 8192, "loaded_context_length": 4096}, 4096),
        ({"max_input_tokens": 200_000}, 200_000),
        ({"meta": None, "context_length": "much"}, None),
        ({}, None),
    ],
)
def test_the_window_is_found_under_every_servers_name_for_it(entry: Json, tokens: int | None) -> None:
    found, _ = window(models({"id": "other", "max_model_len": 1}, {"id": "m", **entry}))
    assert found == tokens


def test_a_single_listed_model_gives_the_window_for_any_name() -> None:
    assert window(models({"id": "other", "max_model_len": 4096}))[0] == 4096
    assert window(models({"id": "other", "max_model_len": 1}, {"id": "another", "max_model_len": 2}))[0] is None


@pytest.mark.parametrize("answer", [whole("no", status=404), whole({"data": 3}), whole([1]), models(), whole("x")])
def test_the_window_is_unknown_without_a_list(answer: Answer) -> None:
    assert window(answer)[0] is None


def test_the_window_is_cached() -> None:
    assert len(window(models({"id": "m", "max_model_len": 4096}), times=3)[1].requests) == 1
    assert len(window(models(), times=3)[1].requests) == 1


def test_an_expired_window_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_backend, "_KEPT_SECONDS", 0.0)
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    window(answer, times=3)
    assert len(asked) == 3
