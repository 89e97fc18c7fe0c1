"""The upstream's key, which an upstream may repeat in any error, reaches neither a caller nor the disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Refuse, Script, Whole, text
from tests.wire.conftest import Servers

KEY = 'sk-canary/4711"quoted'
ERROR = {"error": {"message": f"Wrong key {KEY}.", "type": "server_error", "code": "overloaded"}}
HALVES = [b'data: {"error": {"message": "Wrong key sk-can', b'ary\\/4711\\"quoted."}}\n\n']


@pytest.fixture(scope="module")
def keyed(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> OutliveServer:
    """A server that sends a key to its upstream."""
    file = tmp_path_factory.mktemp("key") / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    return servers("--upstream-key-file", str(file))


@pytest.fixture
def http(keyed: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(keyed.port) as opened:
        yield opened


def has_key(content: bytes) -> bool:
    return b"sk-canary" in content or b"4711" in content


@pytest.mark.parametrize(
    "script",
    [[ERROR], HALVES, [text("Hello"), ERROR], [Whole(ERROR)], [Refuse(400, ERROR)]],
    ids=["event", "halves", "after output", "whole", "refusal"],
)
def test_a_key_in_an_upstreams_error_is_neither_shown_nor_stored(
    http: HttpClient, keyed: OutliveServer, upstream: FakeUpstream, script: Script
) -> None:
    with http.stream(model=upstream.model(script), input="Hi") as stream:
        stream.read_all()
    assert b"Wrong key ***" in stream.frames[-1]
    stored = http.get(f"/v1/responses/{stream.id}").body
    assert b"Wrong key ***" in stored
    assert not has_key(b"".join(stream.frames) + stored)
    for path in keyed.folder.iterdir():
        assert not has_key(path.read_bytes()), path


@pytest.mark.parametrize(
    "script",
    [[Refuse(400, ERROR)], [Refuse(500, f"Wrong key {KEY}.")], [ERROR], HALVES, [Whole(ERROR)]],
    ids=["refusal", "text", "event", "halves", "whole"],
)
def test_a_key_in_a_passed_through_error_is_hidden(http: HttpClient, upstream: FakeUpstream, script: Script) -> None:
    body = {"model": upstream.model(script), "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    answer = http.post("/v1/chat/completions", body)
    assert b"Wrong key ***" in answer.body
    assert not has_key(answer.body)


def test_a_key_in_a_passed_through_header_is_hidden(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(429, x_ratelimit_key=KEY)])
    answer = http.post("/v1/chat/completions", {"model": model, "messages": []})
    assert answer.headers["x-ratelimit-key"] == "***"
