"""Secrets of tools are split off a request before anything of it is kept or shown."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.requests.create import pack, parse_create, unpack
from outlive.core.requests.limits import Limits
from outlive.core.requests.response import header
from outlive.core.requests.secrets import pack_secrets, purpose_of, split_secrets, unpack_secrets
from tests.support.scripting import CountingIds

FUNCTION: Json = {"type": "function", "name": "f", "parameters": {}}
SERVER: Json = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://docs.example/mcp",
    "headers": {"x-key": "canary-1"},
    "authorization": "canary-2",
}


def test_secrets_are_split_off_by_the_label_of_their_server() -> None:
    tools, secrets = split_secrets([FUNCTION, SERVER, {"type": "mcp", "server_label": "plain", "headers": {}}])
    assert tools[0] is FUNCTION
    assert tools[1] == {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example/mcp"}
    assert tools[2] == {"type": "mcp", "server_label": "plain"}
    assert secrets == {"docs": {"headers": {"x-key": "canary-1"}, "authorization": "canary-2"}}
    assert unpack_secrets(pack_secrets(secrets)) == secrets


def test_packed_and_echoed_requests_hold_no_secrets() -> None:
    request = parse_create({"model": "m", "input": "Hi", "tools": [SERVER]}, CountingIds(), Limits())
    assert request.secrets["docs"]["authorization"] == "canary-2"
    packed = pack(request)
    assert b"canary" not in packed
    assert unpack(packed, []).secrets == {}
    assert "canary" not in str(header(request, "resp_1", 1, "m", "queued"))


def test_secrets_are_sealed_for_one_response_only() -> None:
    assert purpose_of("resp_1") != purpose_of("resp_2")
