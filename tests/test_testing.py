"""The scripted model keeps to its script."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from outlive.core.errors import UpstreamFault
from outlive.ports.backend import Backend
from outlive.testing import ScriptedBackend, answer, finish_chunk, text_chunk
from tests.dialects.playback import make_call
from tests.support.scripting import Gate


def test_it_plays_one_script_per_call_and_then_the_last_again() -> None:
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


def test_it_waits_at_gates() -> None:
    async def main() -> None:
        gate, event = Gate(), asyncio.Event()
        backend = ScriptedBackend("m", [["a", gate, "b", event, "c"]])
        stream = backend.stream(make_call())
        await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await gate.reached.wait()
        assert not waiting.done()
        gate.open()
        assert await waiting == [text_chunk("b")]
        event.set()
        assert await anext(stream) == [text_chunk("c")]
        await stream.aclose()

    asyncio.run(main())


def test_it_raises_what_the_script_says() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a", UpstreamFault("gone")]])
        with pytest.raises(UpstreamFault, match="gone"):
            [chunks async for chunks in backend.stream(make_call())]
        assert backend.left == 0

    asyncio.run(main())


def test_it_can_be_passed_through() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a"], ["b"]])
        for text in ("a", "b"):
            passed = await backend.pass_through({"model": "m"})
            pieces = [piece async for piece in passed.body()]
            assert pieces == [b"data: " + text_chunk(text) + b"\n\n", b"data: [DONE]\n\n"]
        assert backend.passed == [{"model": "m"}] * 2

    asyncio.run(main())


def test_it_notices_who_leaves() -> None:
    async def main() -> None:
        backend = ScriptedBackend("m", [["a", "b"]], continuation="prefill")
        async with aclosing(backend.stream(make_call())) as stream:
            await anext(stream)
        assert backend.left == 1
        assert backend.continuation == "prefill"

    asyncio.run(main())
