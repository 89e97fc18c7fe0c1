"""Large requests in every dialect: rendered and encoded beside the event loop, sent in pieces, and not held."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import msgspec
import pytest

from outlive.core.errors import UpstreamFault
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.backend import AnthropicBackend
from outlive.dialects.chat.backend import ChatBackend
from outlive.dialects.responses.backend import ResponsesBackend
from outlive.dialects.transport.http1 import ConnectFailed, HttpPool
from outlive.ports.backend import ModelCall, Upstream
from tests.support.scripting import CountingIds

TEXTS = ["x" * 900_000 + "\N{GRINNING FACE}", "y" * 900_000]


@pytest.mark.parametrize("kind", [ChatBackend, ResponsesBackend, AnthropicBackend])
@pytest.mark.parametrize("large", [True, False])
def test_a_large_request_is_encoded_in_pieces_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, kind: type[ChatBackend], large: bool
) -> None:
    threads: list[int] = []
    sent: list[Any] = []
    module: Any = sys.modules[kind.__module__]
    render = module.render

    def record(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return render(*args, **kwargs)

    async def request(pool: HttpPool, method: str, url: str, headers: bytes, body: Any, read_timeout: float) -> None:
        sent.append(body)
        raise ConnectFailed

    monkeypatch.setattr(module, "render", record)
    monkeypatch.setattr(HttpPool, "request", request)

    async def main() -> None:
        backend = kind(Upstream(name="u", url="http://127.0.0.1:9"), HttpPool(), CountingIds())
        items = [{"type": "message", "role": "user", "content": text} for text in (TEXTS if large else ["Hi", "there"])]
        call = ModelCall("m", CreateResponse(model="m", input=[]), items, large=large)
        with pytest.raises(UpstreamFault):
            async for _ in backend.stream(call):
                pass

    asyncio.run(main())
    assert (threads == [threading.get_ident()]) is not large
    assert type(sent[0]) is (list if large else bytes)
    body = msgspec.json.decode(b"".join(sent.pop()) if large else sent.pop())
    written = str(body.get("messages") or body["input"])
    assert all(text in written for text in (TEXTS if large else ["Hi", "there"]))
