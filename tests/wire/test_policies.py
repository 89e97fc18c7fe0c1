"""What owners may do, over HTTP: OpenAI's SDK waits for a limit per minute, and gives up at a budget."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from openai import NotFoundError, OpenAI, RateLimitError

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say
from tests.wire.conftest import Servers

POLICIES = """
[owners.anna]
requests_per_minute = 2
[owners.bert]
budget_per_month = 0.5
models = ["dear-model"]
[owners.dora]
requests_per_minute = 50
[owners.cleo]
storage = "never"
[prices."dear-model"]
input = 1000
output = 250000
"""
NAMES = ("anna", "bert", "cleo", "dora")


@pytest.fixture(scope="module")
def limited(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> OutliveServer:
    config: Path = tmp_path_factory.mktemp("config") / "outlive.toml"
    config.write_text(POLICIES)
    return servers(*(word for name in NAMES for word in ("--api-key", f"{name}={name}-key-1")), "--config", str(config))


def sdk(server: OutliveServer, name: str, retries: int = 0) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key=f"{name}-key-1", max_retries=retries)


def test_a_limit_per_minute_is_shown_in_headers_and_the_sdk_waits_for_the_next(
    limited: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("Hello"))
    seen = []
    with sdk(limited, "anna") as client:
        for _ in range(2):
            raw = client.responses.with_raw_response.create(model=model, input="Hi")
            seen.append(raw.headers["x-ratelimit-remaining-requests"])
        with pytest.raises(RateLimitError) as refused:
            client.responses.create(model=model, input="Hi")
    assert seen[-1] == "0"
    assert refused.value.code == "rate_limit_exceeded"
    headers = refused.value.response.headers
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert 1 <= int(headers["retry-after"]) <= 60


def test_a_chat_completion_shows_the_owners_limits_in_headers(limited: OutliveServer, upstream: FakeUpstream) -> None:
    with sdk(limited, "dora") as client:
        raw = client.chat.completions.with_raw_response.create(
            model=upstream.model(say("Hello")), messages=[{"role": "user", "content": "Hi"}]
        )
    names = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests")
    assert [raw.headers[name] for name in names] == ["50", "49"]


def test_the_sdk_does_not_repeat_a_request_beyond_a_budget(limited: OutliveServer, upstream: FakeUpstream) -> None:
    with sdk(limited, "bert", retries=3) as client:
        upstream.queue(say("Hello"), model="dear-model")
        client.responses.create(model="dear-model", input="Hi")
        began = time.monotonic()
        with pytest.raises(RateLimitError) as refused:
            client.responses.create(model="dear-model", input="Hi")
        assert time.monotonic() - began < 1
        assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
        assert "0.5 USD" in refused.value.message
        with pytest.raises(NotFoundError) as unknown:
            client.responses.create(model="other", input="Hi")
        assert unknown.value.code == "model_not_found"
        assert list(client.models.list()) == []


def test_an_owner_that_may_not_store_is_refused_what_needs_it(limited: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Hello"))
    with HttpClient(limited.port, "cleo-key-1") as cleo:
        made = cleo.post("/v1/responses", {"model": model, "input": "Hi"}).json()
        assert (made["status"], made["store"]) == ("completed", False)
        assert cleo.get(f"/v1/responses/{made['id']}").status == 404
        refused = cleo.post("/v1/responses", {"model": model, "input": "Hi", "background": True})
        assert (refused.status, refused.error["param"]) == (400, "background")
        refused = cleo.post("/v1/conversations", {})
        assert (refused.status, refused.error["code"]) == (403, "storage_not_allowed")


def test_models_of_several_upstreams_are_found_by_every_name_that_requests_may_use(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    config = tmp_path / "outlive.toml"
    tables = [
        f'[upstreams.{name}]\nurl = "{upstream.url}"\nmodels = {{ {name}-fast = "x", shared = "y" }}' for name in "ab"
    ]
    config.write_text("\n".join([*tables, '[owners.fred]\nmodels = ["b-fast"]']))
    keys = ("--api-key", "anna=anna-key-1", "--api-key", "fred=fred-key-1")
    server = OutliveServer(tmp_path, None, *keys, "--config", str(config))
    with server, sdk(server, "anna") as anna, sdk(server, "fred") as fred:
        assert {"a/a-fast", "a/shared", "b/b-fast", "b/shared"} <= {model.id for model in anna.models.list()}
        for name in ("a/a-fast", "a-fast", "b-fast", "b/shared"):
            assert anna.models.retrieve(name).id == name
        assert [model.id for model in fred.models.list()] == ["b-fast"]
        assert fred.models.retrieve("b-fast").id == "b-fast"
        for client, name in ((anna, "shared"), (anna, "b/a-fast"), (fred, "b/b-fast"), (fred, "a-fast")):
            with pytest.raises(NotFoundError):
                client.models.retrieve(name)
