"""Usage over HTTP: an owner sees its own, an admin all; and what the command prints of it."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from outlive.cli import app
from outlive.storage.sqlite.connection import SqliteDatabase
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, finish, say, text, usage
from tests.wire.conftest import Servers

KEYS = {"anna": "anna-key-1", "bert": "bert-key-1", "ops": "ops-key-1"}
BY_MODEL = "/v1/usage?group_by=model"
PRICES = """
currency = "EUR"
[prices."paid-model"]
input = 2.0
cached_input = 0.5
output = 8.0
"""


@pytest.fixture(scope="module")
def metered(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> OutliveServer:
    config = tmp_path_factory.mktemp("config") / "outlive.toml"
    config.write_text(PRICES)
    keys = [word for name, key in KEYS.items() for word in ("--api-key", f"{name}={key}")]
    return servers(*keys, "--admin", "ops", "--config", str(config))


@pytest.fixture
def clients(metered: OutliveServer, upstream: FakeUpstream) -> Iterator[dict[str, HttpClient]]:
    """Clients by owner. Each of the first two has had two answers before the first test, one that is not stored."""
    with contextlib.ExitStack() as stack:
        yield _prepare({n: stack.enter_context(HttpClient(metered.port, key)) for n, key in KEYS.items()}, upstream)


def _prepare(opened: dict[str, HttpClient], upstream: FakeUpstream) -> dict[str, HttpClient]:
    if not opened["ops"].get("/v1/usage").json()["data"]:
        for name in ("anna", "bert"):
            for stored in (True, False):
                upstream.queue([text("Hello"), finish(), usage(1000, 500)], model="paid-model")
                body = {"model": "paid-model", "input": "Hi", "store": stored}
                assert opened[name].post("/v1/responses", body).status == 200
        upstream.queue(say("Hello"), model="free-model")
        assert opened["anna"].post("/v1/responses", {"model": "free-model", "input": "Hi"}).status == 200
    return opened


def test_an_owner_sees_its_own_usage_and_its_cost(clients: dict[str, HttpClient]) -> None:
    answer = clients["anna"].get("/v1/usage?group_by=model,day")
    assert answer.status == 200
    free, paid = answer.json()["data"]
    assert (free["model"], free["cost"], free["unpriced_models"]) == ("free-model", 0, ["free-model"])
    assert (paid["model"], paid["responses"], paid["input_tokens"], paid["output_tokens"]) == (
        *("paid-model", 2, 2000, 1000),
    )
    assert (paid["cost"], paid["currency"]) == (round(2000 * 2e-6 + 1000 * 8e-6, 6), "EUR")
    assert paid["day"] == datetime.now(UTC).date().isoformat()
    assert "owner" not in paid and answer.json()["has_more"] is False
    assert clients["bert"].get("/v1/usage?group_by=owner").json()["data"][0]["owner"] == "bert"


def test_an_admin_sees_the_usage_of_all_owners_in_pages(clients: dict[str, HttpClient]) -> None:
    ops = clients["ops"]
    owners = [row["owner"] for row in ops.get("/v1/usage?group_by=owner").json()["data"]]
    assert owners == ["anna", "bert"]
    page = ops.get("/v1/usage?group_by=owner&limit=1").json()
    assert ([row["owner"] for row in page["data"]], page["has_more"]) == (["anna"], True)
    rest = ops.get(f"/v1/usage?group_by=owner&limit=1&after={page['last_id']}").json()
    assert ([row["owner"] for row in rest["data"]], rest["has_more"]) == (["bert"], False)


def test_usage_is_limited_to_a_time(clients: dict[str, HttpClient]) -> None:
    anna, tomorrow = clients["anna"], datetime.fromtimestamp(time.time() + 86_400, UTC).date()
    assert anna.get(f"/v1/usage?end={tomorrow}").json()["data"][0]["responses"] == 3
    assert anna.get(f"/v1/usage?start={tomorrow}").json()["data"] == []
    assert anna.get(f"/v1/usage?end={time.time() - 86_400 * 2}").json()["data"] == []
    east = datetime.now(timezone(timedelta(hours=5))) - timedelta(hours=1)
    (since,) = anna.get(f"/v1/usage?{urlencode({'start': east.isoformat()})}").json()["data"]
    assert since["responses"] >= 2  # what is not stored counts from the beginning of its day


@pytest.mark.parametrize(
    "query", ["group_by=colour", "start=yesterday", "end=1.2.3", "limit=0", "limit=x", "after=-1", "colour=red"]
)
def test_a_bad_query_is_refused_by_name(clients: dict[str, HttpClient], query: str) -> None:
    answer = clients["anna"].get(f"/v1/usage?{query}")
    assert answer.status == 400
    assert answer.error["param"] == query.partition("=")[0]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["usage", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_a_table_json_and_csv(
    clients: dict[str, HttpClient], metered: OutliveServer, tmp_path: Path
) -> None:
    where = ("--server", metered.url, "--key", KEYS["ops"])
    lines = run("--by", "owner,model", *where).splitlines()
    assert lines[0].split("\t") == ["OWNER", "MODEL", "RESPONSES", "INPUT_TOKENS", "OUTPUT_TOKENS", "COST", "CURRENCY"]
    assert lines[3].split("\t") == ["bert", "paid-model", "2", "2000", "1000", "0.012", "EUR"]
    (row,) = json.loads(run("--json", *where))["data"]
    assert (row["responses"], row["input_tokens"]) == (5, 4005)
    (anna, bert) = csv.DictReader(io.StringIO(run("--by", "owner", "--csv", *where)))
    assert (anna["owner"], anna["unpriced_models"], bert["cost"]) == ("anna", "free-model", "0.012")


def test_csv_shows_a_name_that_looks_like_a_formula_as_text(tmp_path: Path) -> None:
    names = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1"]
    path = tmp_path / "outlive.db"

    async def fill() -> None:
        database = SqliteDatabase(str(path))
        for name in (*names, "ann-1"):
            tokens, counts = (1, 0, 2, 0, 0, 0), (1, 0, 1)
            await database.change("add_usage_sum", name, f"{name}-model", "up", 86_400.0, *tokens, *counts)
        await database.close()

    asyncio.run(fill())
    output = run("--by", "owner,model", "--csv", "--database", f"sqlite:///{path}")
    rows = {row["owner"]: row for row in csv.DictReader(io.StringIO(output, newline=""))}
    assert rows.keys() == {"ann-1", *(f"'{name}" for name in names)}
    row = rows["'=1+1"]
    assert (row["model"], row["unpriced_models"], row["input_tokens"]) == ("'=1+1-model", "'=1+1-model", "1")
    assert rows["ann-1"]["model"] == "ann-1-model"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_completion_counts_by_the_usage_that_its_upstream_reports(
    clients: dict[str, HttpClient], upstream: FakeUpstream, stream: bool
) -> None:
    model = upstream.model(say("Hello"))
    messages = [{"role": "user", "content": 'Say "usage": {'}]
    body = {"model": model, "messages": messages, "stream": stream}
    assert clients["bert"].post("/v1/chat/completions", body).status == 200
    deadline = time.monotonic() + 5
    while not (rows := [row for row in clients["bert"].get(BY_MODEL).json()["data"] if row["model"] == model]):
        assert time.monotonic() < deadline
    assert (rows[0]["responses"], rows[0]["input_tokens"], rows[0]["output_tokens"]) == (1, 5, 2)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_chat_stream_without_usage_counts_as_an_estimate(
    clients: dict[str, HttpClient], upstream: FakeUpstream, leaves: bool
) -> None:
    gate = Gate()
    model = upstream.model([*[text("word ") for _ in range(20)], *([gate] if leaves else []), finish()])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "x" * 4000}, image]}]
    body = {"model": model, "messages": messages, "stream": True}
    if leaves:
        with clients["bert"].open_stream("POST", "/v1/chat/completions", body):
            gate.wait_reached()
    else:
        assert clients["bert"].post("/v1/chat/completions", body).status == 200
    deadline = time.monotonic() + 5
    while not (rows := [row for row in clients["bert"].get(BY_MODEL).json()["data"] if row["model"] == model]):
        assert time.monotonic() < deadline
    (row,) = rows
    assert (row["responses"], row["input_tokens"] // 1000) == (1, 2)
    assert 20 <= row["output_tokens"] <= 25
    assert (row["estimated_input_tokens"], row["estimated_output_tokens"]) == (
        row["input_tokens"],
        row["output_tokens"],
    )
