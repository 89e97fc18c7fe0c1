"""Databases of an earlier version, opened with the present one: it reads, recovers and continues them as that one did.

The fixtures in data/ were made by record.py, which explains them. Only what is public is used: the command line, HTTP
and the URL of a database.
"""

from __future__ import annotations

import json
import lzma
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from outlive.storage.queries import SCHEMA_VERSION
from tests.recorded.record import NOT_STORED
from tests.recorded.server import DATA, DATABASES, SEAL_KEY, Server, client_of, load_postgres, load_sqlite
from tests.recorded.steps import find_known, make_steps, recover, take
from tests.recorded.upstream import Upstream
from tests.support.postgres import PostgresServer

Json = dict[str, Any]

# The key in a final object's `outlive` for the numbers at which its run was resumed; in the recordings it is "joints".
RESUMED_AT = "resumed_at"
# Added to the final object of a run that was cut off; the recorded version had no such codes.
_REASON = '"reason":{"code":"worker_lost","retryable":true}'
LOST = re.compile(f',"outlive":{{{_REASON}}}|,{_REASON}')
# Streams with summaries of reasoning: in the recordings their items begin with an empty `content`, now without one.
SUMMARISED = "response.reasoning_summary_part.added"
EMPTY = '"summary":[],"content":[]'


class Opened(NamedTuple):
    """A server of the present version on a copy of a recorded database."""

    recorded: Json
    server: Server
    upstream: Upstream
    known: set[str]

    def recover(self, run: Json) -> Json:
        return recover(run, self.server.port, self.known, self.recorded["recorded_at"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    made = PostgresServer().create()
    yield made
    made.remove()


def read_recorded(kind: str) -> Json:
    recorded: Json = json.loads(lzma.decompress((DATA / f"{kind}.json.xz").read_bytes()))
    return recorded


def load(kind: str, folder: Path, cluster: PostgresServer, name: str) -> str:
    if kind == "sqlite":
        return load_sqlite(DATA / "sqlite.db.xz", folder)
    return load_postgres(DATA / "postgres.sql.xz", cluster, name)


def copy(kind: str, url: str, folder: Path, cluster: PostgresServer, name: str) -> str:
    """Copy a database to one of the other kind with the command for it."""
    target = cluster.url(name) if kind == "sqlite" else f"sqlite:///{(folder / 'outlive.db').absolute()}"
    if kind == "sqlite":
        cluster.sql(f"CREATE DATABASE {name}")
    command = [sys.executable, "-m", "outlive", "copy", "--from", url, "--to", target]
    copied = subprocess.run(command, capture_output=True, text=True)
    assert copied.returncode == 0, copied.stdout + copied.stderr
    return target


def restore(url: str, folder: Path) -> str:
    """Back a recorded file up as it is, with the commands for it, and restore it beside itself."""
    restored = f"sqlite:///{(folder / 'restored.db').absolute()}"
    for words in (("backup", "kept.db", "--database", url), ("restore", "kept.db", "--database", restored)):
        done = subprocess.run([sys.executable, "-m", "outlive", *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (folder / "restored.db.key").write_text(SEAL_KEY)
    return restored


def serve(stack: ExitStack, kind: str, folder: Path, url: str) -> Opened:
    recorded = read_recorded(kind)
    upstream = stack.enter_context(Upstream())
    upstream.release_all()
    server = stack.enter_context(Server(sys.executable, folder, url, upstream.url))
    return Opened(recorded, server, upstream, find_known(recorded))


@pytest.fixture(scope="module", params=[*DATABASES, *(f"copied {kind}" for kind in DATABASES), "restored sqlite"])
def opened(
    request: pytest.FixtureRequest, cluster: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """One for all tests: they only read, until the last of them."""
    kind = request.param.split()[-1]
    folder = tmp_path_factory.mktemp("read")
    url = load(kind, folder, cluster, f"{request.param.replace(' ', '_')}_read")
    if request.param.startswith("restored"):
        url = restore(url, folder)
    elif request.param != kind:
        url = copy(kind, url, folder, cluster, f"{kind}_copy")
    with ExitStack() as stack:
        served = serve(stack, kind, folder, url)
        yield served
        assert "Traceback" not in served.server.log, served.server.log


def first_difference(expected: str, got: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), min(len(expected), len(got)))
    begin = max(0, at - 80)
    return f"at {at}:\n  recorded ...{expected[begin : at + 200]!r}\n  now      ...{got[begin : at + 200]!r}"


def report(differences: list[str]) -> str:
    return f"{len(differences)} differ:\n" + "\n".join(differences[:10])


def test_recorded_answers_are_returned_byte_for_byte(opened: Opened) -> None:
    differences = []
    for asked in opened.recorded["answers"]:
        client = client_of(asked["owner"], opened.server.port)
        answer = client.request(asked["method"], asked["path"], asked["body"], **(asked["headers"] or {}))
        expected = f"{asked['status']} {asked['type']} {asked['answer']}"
        got = f"{answer.status} {answer.headers.get('content-type', '')} {answer.body.decode()}"
        if got != expected:
            title = f"{asked['kind']}: {asked['method']} {asked['path']}"
            differences.append(f"{title} {first_difference(expected, got)}")
    assert not differences, report(differences)


def test_runs_in_flight_end_as_the_recorded_version_ended_them(opened: Opened) -> None:
    differences = []
    for run in opened.recorded["unfinished"]:
        recovered = opened.recover(run)
        assert recovered["replay"].startswith(run["frames"]), f"{run['kind']}: events changed that were durable"
        for name, expected in run["recovered"].items():
            expected = expected.replace('"joints":', f'"{RESUMED_AT}":')
            got = LOST.sub("", recovered[name])
            if got != expected:
                differences.append(f"{run['kind']}, {name} {first_difference(expected, got)}")
    assert not differences, report(differences)


def test_a_text_in_flight_resumes_after_the_recorded_numbers(opened: Opened) -> None:
    (run,) = [run for run in opened.recorded["unfinished"] if run["kind"] == "text in flight"]
    final = json.loads(opened.recover(run)["answer"])
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == "".join(f"word{n} " for n in range(20))
    # It was cut off twice while recording, before 10 and before 14, and once more at the end.
    assert final["outlive"] == {"attempts": 4, RESUMED_AT: [10, 14, run["last"] + 1]}


def test_a_response_that_ended_before_is_shown_as_it_was_stored(opened: Opened) -> None:
    final = client_of("ann", opened.server.port).retrieve(opened.recorded["names"]["continued twice"])
    assert final["outlive"] == {"attempts": 3, "joints": [10, 14]}


def test_recorded_responses_are_filtered_by_model_and_metadata(opened: Opened) -> None:
    """Rows of the recorded version have no column to filter by: their final objects are read."""
    client = client_of("ann", opened.server.port)
    listed = client.list_all("/v1/responses")
    pairs = {(name, value) for each in listed for name, value in each["metadata"].items()}
    assert pairs
    for name, value in pairs:
        found = client.list_responses(f"?order=asc&limit=100&{urlencode({f'metadata[{name}]': value})}")
        assert [each["id"] for each in found] == [each["id"] for each in listed if each["metadata"].get(name) == value]
    ended = [each for each in listed if each["status"] == "completed"]
    for model in {each["model"] for each in ended}:
        found = client.list_responses(f"?limit=100&{urlencode({'model': model, 'status': 'completed'})}")
        shown = {each["id"] for each in ended if each["model"] == model}
        assert shown <= {each["id"] for each in found}


def test_sealed_secrets_of_runs_in_flight_are_opened(opened: Opened) -> None:
    (run,) = [run for run in opened.recorded["unfinished"] if run["kind"] == "mcp tool in flight"]
    opened.recover(run)
    (call,) = opened.upstream.calls
    assert call == {
        "name": "stamp", "word": "desk-heldkept-stamp", "repeated": True, "authorization": "Bearer token-of-bob",
    }  # fmt: skip


def test_chains_and_conversations_continue_with_the_recorded_context(opened: Opened) -> None:
    """The last of those that share a server: it changes lists that the first one compares."""
    recorded, server, upstream, known = opened
    for run in recorded["unfinished"]:
        client_of(run["owner"], server.port).wait_ended(run["id"])
    differences = []
    steps = make_steps(recorded["names"], recorded["compacted"])
    for step, expected in zip(steps, recorded["steps"], strict=True):
        taken = take(step, server.port, upstream, known, recorded["recorded_at"])
        for name in expected:
            was, now = str(expected[name]), str(taken[name])
            was = was.replace(EMPTY, '"summary":[]') if SUMMARISED in was else was
            if was != now:
                differences.append(f"{step.kind}, {name} {first_difference(was, now)}")
    assert not differences, report(differences)


def test_the_recorded_version_has_an_older_schema_than_the_present_one(tmp_path: Path) -> None:
    """Or the tests above would show nothing about upgrades."""
    load_sqlite(DATA / "sqlite.db.xz", tmp_path)
    with closing(sqlite3.connect(tmp_path / "outlive.db")) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    assert (
        f"COPY outlive.schema (version) FROM stdin;\n{version}\n"
        in lzma.decompress((DATA / "postgres.sql.xz").read_bytes()).decode()
    )
    assert f"since schema {version}" in (DATA.parent.parent.parent / "docs" / "how-to" / "back-up.md").read_text()
    assert version < SCHEMA_VERSION


@pytest.mark.parametrize("file", ["sqlite.db.xz", "postgres.sql.xz"])
def test_content_that_must_not_be_stored_is_in_no_recorded_database(file: str) -> None:
    content = lzma.decompress((DATA / file).read_bytes())
    for canary in (NOT_STORED, "token-of-ann", "token-of-bob"):
        assert canary.encode() not in content and canary.encode().hex().encode() not in content
