"""The real embedded model: it answers, continues a sentence, survives a crash and dies with its parent."""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import aiohttp
import pytest

from outlive.core.errors import SettingsError
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.backend import ChatBackend
from outlive.dialects.embedded import backend
from outlive.dialects.embedded.backend import LocalModel, Say
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import ModelCall, Upstream
from tests.support.scripting import CountingIds

QUESTION = {"role": "user", "content": "Tell me a story about an otter."}


def with_model(check: Callable[[LocalModel, Upstream], Awaitable[None]], say: Say = lambda _: None) -> None:
    """Run `check` against a started model."""

    async def run() -> None:
        model = LocalModel(say)
        try:
            await check(model, await model.start())
        finally:
            await model.stop()
        assert model._child is not None and model._child.returncode is not None

    asyncio.run(run())


async def stream(upstream: Upstream, messages: list[dict[str, str]], tokens: int = 16) -> AsyncIterator[dict]:
    body = {"model": "any-name", "messages": messages, "stream": True, "max_tokens": tokens, "temperature": 0}
    headers = {"Authorization": f"Bearer {upstream.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{upstream.url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


async def pieces(upstream: Upstream, messages: list[dict[str, str]]) -> list[str]:
    deltas = [chunk["choices"][0]["delta"] async for chunk in stream(upstream, messages)]
    return [delta["content"] for delta in deltas if delta.get("content")]


def test_any_model_name_is_answered_and_the_answer_names_the_real_one():
    async def check(model: LocalModel, upstream: Upstream) -> None:
        chunks = [chunk async for chunk in stream(upstream, [QUESTION])]
        assert {chunk["model"] for chunk in chunks} == {backend.MODEL}
        assert chunks[-1]["choices"][0]["finish_reason"] in {"length", "stop"}
        assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) > 1

    said: list[str] = []
    with_model(check, said.append)
    assert [line.split("(")[0] for line in said] == ["Loading the embedded model ", "The embedded model is ready "]


def test_a_trailing_assistant_message_is_continued_and_not_repeated():
    async def check(model: LocalModel, upstream: Upstream) -> None:
        whole = await pieces(upstream, [QUESTION])
        begun = "".join(whole[:8])
        rest = await pieces(upstream, [QUESTION, {"role": "assistant", "content": begun}])
        assert rest
        assert not "".join(rest).startswith(begun)

    with_model(check)


def test_requests_without_the_key_are_refused():
    async def check(model: LocalModel, upstream: Upstream) -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("/models", "/chat/completions"):
                async with session.get(upstream.url + path, headers={"Origin": "http://elsewhere.example"}) as response:
                    assert response.status == 401
                    assert response.headers.get("access-control-allow-origin") != "*"

    with_model(check)


def test_after_a_crash_another_child_answers_at_the_same_address():
    ready_again = asyncio.Event()

    def say(line: str) -> None:
        if "ready again" in line:
            ready_again.set()

    async def check(model: LocalModel, upstream: Upstream) -> None:
        assert model._child is not None
        model._child.kill()
        await ready_again.wait()
        assert await pieces(upstream, [QUESTION])

    with_model(check, say)


PARENT = """
import asyncio
from outlive.dialects.embedded.backend import LocalModel

async def main():
    print((await LocalModel().start()).url, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_killing_the_parent_kills_the_child():
    async def run() -> None:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": "src"}
        )
        assert parent.stdout
        parts = urlsplit((await parent.stdout.readline()).decode())
        assert await listens(parts.hostname, parts.port)
        parent.kill()
        await parent.wait()
        # The child ends a moment after its parent, and only its end frees the port.
        async with asyncio.timeout(10):
            while await listens(parts.hostname, parts.port):
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_model_that_does_not_load_is_reported_with_the_reason(tmp_path, monkeypatch):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    monkeypatch.setattr(backend, "find_weights", lambda: broken)
    with pytest.raises(SettingsError, match="did not load"):
        asyncio.run(LocalModel().start())


def test_a_missing_installation_is_reported_with_two_remedies(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"outlive\[local\].*--upstream"):
        asyncio.run(LocalModel().start())


async def listens(host: str | None, port: int | None) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        await writer.wait_closed()
    except OSError:
        return False
    return True


def test_tokens_are_counted_by_the_model_and_its_window_is_known():
    async def check(model: LocalModel, upstream: Upstream) -> None:
        pool = HttpPool()
        backend = ChatBackend(upstream, pool, CountingIds())
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How are you today?"}]}
        request = CreateResponse(model="any", input=[], instructions="Be brief.", max_output_tokens=16)
        call = ModelCall("any", request, [item])
        translator = backend.translator(call)
        async for chunks in backend.stream(call):
            for chunk in chunks:
                translator.feed(chunk)
        usage = translator.end()[1].usage
        assert usage is not None
        assert await backend.count(call) == usage["input_tokens"]
        assert await backend.window("any") == 2048
        pool.close()

    with_model(check)
