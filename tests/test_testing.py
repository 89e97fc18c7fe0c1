"""The scripted model follows its script, and the server that answers with it is a real one."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from outlive.core.errors import SettingsError
from outlive.ports.backend import Backend
from outlive.testing import ScriptedBackend, UpstreamFault, answer, finish_chunk, serve, text_chunk
from tests.dialects.playback import make_call
from tests.support.scripting import Gate

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "test-your-client.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_one_script_is_played_per_call_and_then_the_last_again() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a", finish_chunk()], [answer("b")]])
        as_port: Backend = backend
        call = make_call()
        assert [chunks async for chunks in as_port.stream(call)] == [[text_chunk("a")], [finish_chunk()]]
        for _ in range(2):
            assert [chunks async for chunks in as_port.stream(call)] == [answer("b")]
        assert backend.calls == [call] * 3
        assert backend.left == 0
        assert [model["id"] for model in await as_port.models()] == ["m"]
        await as_port.close()

    asyncio.run(main())


def test_a_script_waits_for_events_and_pauses() -> None:
    async def main() -> None:
        gate, event, thread_event = Gate(), asyncio.Event(), threading.Event()
        backend = ScriptedBackend("m", [["a", gate, "b", event, "c", thread_event, 0.01, "d"]])
        stream = backend.stream(make_call())
        await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await gate.reached.wait()
        assert not waiting.done()
        gate.open()
        assert await waiting == [text_chunk("b")]
        event.set()
        assert await anext(stream) == [text_chunk("c")]
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        thread_event.set()
        before = asyncio.get_running_loop().time()
        assert await waiting == [text_chunk("d")]
        assert asyncio.get_running_loop().time() - before >= 0.01
        await stream.aclose()

    asyncio.run(main())


def test_a_script_raises_its_errors() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a", UpstreamFault("gone")]])
        with pytest.raises(UpstreamFault, match="gone"):
            [chunks async for chunks in backend.stream(make_call())]
        assert backend.left == 0

    asyncio.run(main())


def test_a_script_is_passed_through_as_an_event_stream() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a"], ["b"]])
        for text in ("a", "b"):
            passed = await backend.pass_through({"model": "m"})
            pieces = [piece async for piece in passed.body()]
            assert pieces == [b"data: " + text_chunk(text) + b"\n\n", b"data: [DONE]\n\n"]
        assert backend.passed == [{"model": "m"}] * 2

    asyncio.run(main())


def test_a_stream_closed_before_its_end_is_counted() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a", "b"]], continuation="prefill")
        async with aclosing(backend.stream(make_call())) as stream:
            await anext(stream)
        assert backend.left == 1
        assert backend.continuation == "prefill"

    asyncio.run(main())


# -- the server


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_the_tests_on_the_documentation_page_pass(snippet: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(snippet, str(PAGE), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


def test_a_server_has_several_models_settings_and_a_database_that_lasts(tmp_path: Path) -> None:
    one, two = ScriptedBackend("one", [answer("1")]), ScriptedBackend("two", [["2", UpstreamFault("broken")]])
    settings: Any = {"database": f"sqlite:///{tmp_path}/outlive.db", "keys": {"ann": ["secret"]}}
    with serve(one, two, **settings) as url, OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
        listed = [model.id for model in client.models.list()]
        assert [client.responses.create(model=name, input="Hi").status for name in listed] == [
            "completed",
            "incomplete",
        ]
        kept = client.responses.create(model="one", input="Hi")
        assert kept.output_text == "1"
        assert client.responses.create(model="two", input="Hi").status == "incomplete"
        with pytest.raises(BadRequestError, match="no model 'three'"):
            client.responses.create(model="three", input="Hi")
    with serve(one, **settings) as url, OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
        assert client.responses.retrieve(kept.id).output_text == "1"


def test_a_server_stops_while_a_model_waits() -> None:
    model = ScriptedBackend("m", [["a", threading.Event()]])
    with serve(model) as url, OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        stream: Any = client.responses.create(model="m", input="Hi", stream=True)
        assert next(iter(stream)).type == "response.created"
        stream.close()
    assert model.left == 1


def test_a_server_that_cannot_start_raises_the_reason(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="Cannot listen"),
        serve(ScriptedBackend("m", []), host="192.0.2.1"),
    ):
        pass
