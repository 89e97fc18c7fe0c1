"""The commands of docs/how-to/usage.md about owners, on the database of a server that runs."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outlive.storage import owners
from tests.cli.conftest import Run
from tests.support.http_client import HttpClient
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import FakeUpstream, Gate, say, text

KEYS = (
    "--api-key",
    "anna=anna-key-1",
    "--api-key",
    "bert=bert-key-1",
    "--sweep-seconds",
    "0.2",
    "--max-running",
    "2",
    "--keep-alive-seconds",
    "0.6",
)


@pytest.fixture(params=["sqlite", "postgres"])
def owned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[OutliveServer, FakeUpstream]]:
    url = DATABASES.create() if request.param == "postgres" else None
    with FakeUpstream() as upstream:
        seal = {"OUTLIVE_SEAL_KEY": "a-seal-key-of-the-nodes-that-share-a-database"}
        flags = (*KEYS, "--webhook-private")
        server = OutliveServer(tmp_path / "server", upstream.url, *flags, database_url=url, env=seal)
        (tmp_path / "server").mkdir()
        with server:
            yield server, upstream


def test_an_owner_is_exported_and_erased_and_its_usage_stays(
    owned: tuple[OutliveServer, FakeUpstream], run: Run, tmp_path: Path
) -> None:
    server, upstream = owned
    where = ("--database", server.database_url)
    model = upstream.model(say("The canary sang."))
    with HttpClient(server.port, "anna-key-1") as anna, HttpClient(server.port, "bert-key-1") as bert:
        conversation = anna.post("/v1/conversations", {"metadata": {"a": "b"}}).json()["id"]
        asked = anna.post("/v1/responses", {"model": model, "input": "Sing.", "conversation": conversation}).json()
        kept = bert.post("/v1/responses", {"model": model, "input": "Sing."}).json()
        assert (
            "3 responses, conversations and usage records"
            in run("owners", "export", "anna", "anna.jsonl", *where).output
        )
        lines = [json.loads(line) for line in (tmp_path / "anna.jsonl").read_text().splitlines()]
        assert lines[0]["response"] == anna.get(f"/v1/responses/{asked['id']}").json()
        assert lines[0]["input"][0]["content"][0]["text"] == "Sing."
        assert (lines[1]["id"], lines[1]["metadata"], len(lines[1]["items"])) == (conversation, {"a": "b"}, 2)
        record = {"type": "usage", "response_id": asked["id"], "status": "completed", "model": model, "input_tokens": 5}
        assert record.items() <= lines[2].items() and len(lines) == 3
        assert run("owners", "export", "anna", "anna.jsonl", *where).exit_code == 2

        erased = json.loads(run("owners", "erase", "anna", "--json", *where).output)
        assert (erased["responses"], erased["conversations"], erased["running"]) == (1, 1, 0)
        assert anna.get(f"/v1/responses/{asked['id']}").status == 404
        assert anna.get(f"/v1/conversations/{conversation}").status == 404
        assert bert.get(f"/v1/responses/{kept['id']}").status == 200
    rows = run("usage", "--by", "owner", *where).output.splitlines()
    assert [row.split("\t")[:3] for row in rows[1:]] == [["anna", "1", "5"], ["bert", "1", "5"]]
    assert json.loads(run("owners", "erase", "anna", "--usage", "--json", *where).output)["usage"] == 1
    assert json.loads(run("usage", "--by", "owner", "--json", *where).output)["data"][0]["owner"] == "bert"
    assert "owner.erased" in run("audit", *where).output


def test_a_policy_in_the_database_holds_within_a_second(owned: tuple[OutliveServer, FakeUpstream], run: Run) -> None:
    server, upstream = owned
    where = ("--database", server.database_url)
    model = upstream.model(say("Hello"))
    set_ = run("owners", "set", "anna", "storage=never", "requests_per_minute=50", f"models={model},other", *where)
    assert json.loads(set_.output.partition(": ")[2]) == {
        "storage": "never", "requests_per_minute": 50, "models": [model, "other"],
    }  # fmt: skip
    time.sleep(1.0)
    with HttpClient(server.port, "anna-key-1") as anna:
        answer = anna.post("/v1/responses", {"model": model, "input": "Hi"})
        assert (answer.json()["store"], answer.headers["x-ratelimit-limit-requests"]) == (False, "50")
    removed = run("owners", "set", "anna", "storage=", "models=", *where)
    assert json.loads(removed.output.partition(": ")[2]) == {"requests_per_minute": 50}
    assert "requests_per_minute" in run("owners", "list", *where).output
    assert json.loads(run("owners", "list", "--json", *where).output) == {"anna": {"requests_per_minute": 50}}


def test_the_help_of_policies_names_their_table(run: Run) -> None:
    assert "those of owners.NAME in the settings" in run("owners", "set", "--help", COLUMNS="200").stdout


@pytest.mark.parametrize("change", ["colour=red", "colour=", "storage=no", "max_running=many", "budget_per_month=-1"])
def test_a_policy_that_cannot_be_is_refused(run: Run, tmp_path: Path, change: str) -> None:
    url = f"sqlite:///{tmp_path}/outlive.db"
    result = run("owners", "set", "anna", change, "--database", url)
    assert result.exit_code == 2
    assert change.partition("=")[0] in result.output
    with closing(sqlite3.connect(tmp_path / "outlive.db")) as db:
        assert db.execute("SELECT * FROM owner_policies").fetchall() == []


def test_a_change_of_a_policy_without_an_equals_sign_is_refused_and_removes_nothing(run: Run, tmp_path: Path) -> None:
    where = ("--database", f"sqlite:///{tmp_path}/outlive.db")
    assert run("owners", "set", "anna", "budget_per_month=100", *where).exit_code == 0
    result = run("owners", "set", "anna", "budget_per_month", "200", *where)
    assert (result.exit_code, "'budget_per_month' must be written KEY=VALUE" in result.stderr) == (2, True)
    assert "100" in run("owners", "list", *where).output


@pytest.mark.parametrize(
    "words",
    [
        *("owners list", "owners erase anna", "owners export anna a.jsonl", "keys list", "keys revoke key_1"),
        *("audit", "usage", "webhooks deliveries"),
    ],
)
def test_a_database_that_does_not_exist_is_named_and_not_made(run: Run, tmp_path: Path, words: str) -> None:
    result = run(*words.split(), "--database", "sqlite:///typo.db")
    assert (result.exit_code, result.stderr) == (2, f"outlive: There is no database {tmp_path}/typo.db.\n")
    assert list(tmp_path.iterdir()) == []


def test_what_runs_or_waits_is_cancelled_and_erased(owned: tuple[OutliveServer, FakeUpstream], run: Run) -> None:
    server, upstream = owned
    where = ("--database", server.database_url)
    model = upstream.model([text("Hello"), Gate()])
    with HttpClient(server.port, "anna-key-1") as anna:
        for n in range(3):
            anna.post("/v1/responses", {"model": model, "input": f"Hi {n}", "background": True})
        erased = json.loads(run("owners", "erase", "anna", "--json", "--usage", *where).output)
        assert (erased["responses"], erased["running"], erased["usage"]) == (3, 0, 3)
        assert anna.get("/v1/responses").json()["data"] == []
    for asked in upstream.calls(model):
        asked.wait_disconnected()


def test_an_end_user_is_erased_with_the_events_that_were_not_sent(
    owned: tuple[OutliveServer, FakeUpstream], run: Run
) -> None:
    server, upstream = owned
    where = ("--database", server.database_url)
    key = json.loads(run("keys", "new", "--owner", "app", "--acts-for", "--json", *where).output)["key"]
    time.sleep(1)
    hook = {"name": "x", "url": f"http://127.0.0.1:{free_port()}/", "event_types": ["response.completed"]}
    with HttpClient(server.port, key) as app:
        assert app.post("/v1/webhook_endpoints", hook).status == 200
        for user in ("a", "b", "ab"):
            app.post("/v1/responses", {"model": upstream.model(), "input": "Hi"}, **{"Outlive-End-User": user})
        erased = json.loads(run("owners", "erase", "app", "--end-user", "a", "--json", *where).output)
        assert (erased["responses"], erased["webhook_deliveries"]) == (1, 1)
        assert len(app.get("/v1/webhook_deliveries").json()["data"]) == 2
        kept = [app.get("/v1/responses", **{"Outlive-End-User": user}).json()["data"] for user in ("a", "b", "ab")]
    assert [len(each) for each in kept] == [0, 1, 1]
    assert "app, end user a" in run("audit", *where).output


def test_what_ran_when_its_server_died_is_erased_by_the_next(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeUpstream() as upstream:
        server = OutliveServer(tmp_path, upstream.url, *KEYS)
        with server, HttpClient(server.port, "anna-key-1") as anna:
            model = upstream.model([text("Hello"), Gate()])
            anna.post("/v1/responses", {"model": model, "input": "Hi", "background": True})
            server.kill()
        where = ("--database", server.database_url)
        with monkeypatch.context() as patched:
            patched.setattr(owners, "MOST_LOOKS", 1)
            result = run("owners", "erase", "anna", *where)
        assert (result.exit_code, "1 responses have not ended" in result.output) == (0, True)
        with server:
            again = json.loads(run("owners", "erase", "anna", "--json", *where).output)
            assert (again["responses"], again["running"]) == (0, 0)


def test_every_command_of_the_page_runs(run: Run, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/usage.md").read_text()
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    with FakeUpstream() as upstream, OutliveServer(tmp_path, upstream.url) as server:
        model = upstream.model(say("Hello"))
        with HttpClient(server.port) as http:
            assert http.post("/v1/responses", {"model": model, "input": "Hi"}).status == 200
            assert len([command for command in commands if command.startswith("outlive ")]) >= 9
            for command in commands:
                words = shlex.split(command.partition(" > ")[0].replace("sqlite:///outlive.db", server.database_url))
                if words[0] == "outlive":
                    result = run(*words[1:], OUTLIVE_SERVER=server.url)
                    assert result.exit_code == 0, (command, result.output)
                else:
                    assert words[0] == "curl" and http.get(words[1].partition(":7878")[2]).status == 200
