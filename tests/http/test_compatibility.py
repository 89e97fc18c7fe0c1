"""A uvicorn whose inner parts have changed does not stop the server: it serves with uvicorn's own protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from outlive.http.compatibility import LOST, find_fault
from tests.support.fixtures import upstream
from tests.support.other_versions import rename, run_tests
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, say, text

__all__ = ["upstream"]

WARNING = "this version of uvicorn is not known here"
# Each is private in uvicorn, and used by Outlive's protocols: an overridden method, a class, an attribute.
CHANGES = ["_start_asgi_task", "RequestResponseCycle", "chunked_encoding", "handle_cont"]


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_the_installed_uvicorn_has_what_is_used_of_it(runner: object) -> None:
    assert runner(find_fault()) is None  # type: ignore[operator]


def test_an_override_that_is_not_called_any_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: HttpToolsProtocol, cycle: object, app: object) -> None:
        raise AssertionError

    monkeypatch.setattr(HttpToolsProtocol, "_start_asgi_task", start)
    assert asyncio.run(find_fault()) is not None


@pytest.mark.parametrize("word", CHANGES)
def test_a_server_with_another_uvicorn_streams_and_notices_who_leaves(
    tmp_path: Path, upstream: FakeUpstream, word: str
) -> None:
    with OutliveServer(tmp_path, upstream.url, env=rename(tmp_path, "uvicorn", word)) as server:
        assert WARNING in server.log and LOST in server.log and "repeated POST" in LOST
        with server.client as http:
            with http.stream(model=upstream.model(say("Hel", "lo")), input="Hi") as stream:
                sent = stream.read_rest()
            assert b'"delta":"Hel"' in sent and sent.endswith(b"data: [DONE]\n\n")
            gate = Gate()
            model = upstream.model([text("Hi"), gate, *say("there")])
            with http.stream(model=model, input="Hi", store=False) as stream:
                stream.read_delta("Hi")
            upstream.wait_call(model).wait_disconnected()


def test_the_wire_is_the_same_with_another_uvicorn(tmp_path: Path) -> None:
    chosen = (
        "replay or running_stream or cut_client or any_text or slow_reader or comments or continues_after or unstored "
        "or between_events or turn_has or sent_together or large_frames or after_a_cut_connection or client_timeout"
    )
    files = [f"tests/wire/test_{name}.py" for name in ("streaming", "disconnects", "websocket", "retries")]
    run_tests(rename(tmp_path, "uvicorn", "_start_asgi_task"), *files, "-k", f"({chosen}) and not postgres")
