"""A server behind a forward proxy: its streams, the doctor, and MCP servers, which are reached directly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import HOST, Authority
from tests.support.forward_proxy import PASSWORD, ForwardProxy, needs_tinyproxy
from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer
from tests.support.tool_calls import find_call, request_call
from tests.support.upstream import FakeUpstream, say

pytestmark = needs_tinyproxy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[FakeUpstream]:
    """Start an upstream that speaks TLS, under a name that is not taken for this machine."""
    with FakeUpstream(HOST, authority.serve()) as running:
        yield running


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ForwardProxy]:
    with ForwardProxy(tmp_path / "proxy") as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, authority: Authority, secure: FakeUpstream) -> Path:
    file = tmp_path / "outlive.toml"
    file.write_text(f'[upstreams.lab]\nurl = "{secure.url}"\nca_file = "{authority.file}"\n')
    return file


def test_a_server_streams_through_the_proxy_of_its_environment(
    tmp_path: Path, config: Path, proxy: ForwardProxy, secure: FakeUpstream
) -> None:
    flags = ("--config", str(config), "--log-level", "debug")
    with OutliveServer(tmp_path, None, *flags, env={"HTTPS_PROXY": proxy.url}) as server, server.client as http:
        for _ in range(3):
            with http.stream(model=secure.model(say("Hel", "lo")), input="Hi") as stream:
                assert b'"delta":"Hel"' in stream.read_rest()
        assert proxy.requests == [f"CONNECT {HOST}:{secure.port} HTTP/1.1"]  # one tunnel for all
        assert PASSWORD not in server.log


def test_a_server_reaches_directly_what_no_proxy_names(
    tmp_path: Path, config: Path, proxy: ForwardProxy, secure: FakeUpstream
) -> None:
    env = {"https_proxy": proxy.url, "no_proxy": HOST}
    with OutliveServer(tmp_path, None, "--config", str(config), env=env) as server, server.client as http:
        assert http.create(model=secure.model(say("Hi")), input="Hi").status == 200
    assert proxy.requests == []


def test_a_wrong_password_of_the_proxy_is_an_error_that_does_not_repeat_it(
    tmp_path: Path, config: Path, proxy: ForwardProxy
) -> None:
    env = {"HTTPS_PROXY": proxy.url.replace(PASSWORD, "wr0ng-pass")}
    with OutliveServer(tmp_path, None, "--config", str(config), env=env) as server, server.client as http:
        answer = http.create(model="m", input="Hi")
        assert answer.status == 502
        assert "refused this server's user name or password" in answer.error["message"]
        assert "wr0ng-pass" not in server.log + repr(answer)


def test_the_doctor_uses_the_proxy_and_shows_it(config: Path, proxy: ForwardProxy) -> None:
    command = [sys.executable, "-m", "outlive", "doctor", "--config", str(config), "--json", "--port", "0"]
    command += ["--database", f"sqlite:///{config.parent / 'outlive.db'}"]
    env = {**os.environ, "HTTPS_PROXY": proxy.url}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    upstream = json.loads(done.stdout)["sections"][-1]
    found = {each["name"]: (each["state"], each["detail"]) for each in upstream["findings"]}
    assert found["proxy"] == ("ok", f"http://***@127.0.0.1:{proxy.port}, as the environment says")
    assert found["models"][0] == found["chat"][0] == "ok"
    assert PASSWORD not in done.stdout + done.stderr
    assert {line.split()[0] for line in proxy.requests} == {"CONNECT"}


@pytest.mark.parametrize("through", [False, True])
def test_mcp_servers_are_reached_through_the_proxy_only_if_that_is_set(
    tmp_path: Path, proxy: ForwardProxy, upstream: FakeUpstream, through: bool
) -> None:
    with McpServer(tmp_path / "mcp") as mcp:
        (tmp_path / "mcp.toml").write_text(f'[mcp.notes]\nurl = "{mcp.url.replace("127.0.0.1", HOST)}"\n')
        flags = ["--config", str(tmp_path / "mcp.toml"), *(["--mcp-proxy"] if through else [])]
        with OutliveServer(tmp_path, upstream.url, *flags, env={"HTTP_PROXY": proxy.url}) as server:
            model = upstream.model(request_call("add", a=2, b=3), say("Five."))
            tools: Any = [{"type": "mcp", "server_label": "notes", "require_approval": "never"}]
            response = server.client.create(model=model, input="2 + 3?", tools=tools).json()
        assert find_call(response)["output"] == "5"
    assert bool(proxy.requests) == through
    assert all(f"http://{HOST}:" in line for line in proxy.requests)
