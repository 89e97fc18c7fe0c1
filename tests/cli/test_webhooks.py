"""`outlive webhooks` on a running server and on its database, and every command of docs/how-to/webhooks.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.receiver import Receiver
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream
from tests.support.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md").read_text()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OutliveServer, str]]:
    """A server, and a model of its upstream."""
    with FakeUpstream() as upstream:
        folder = tmp_path_factory.mktemp("hooked")
        with OutliveServer(folder, upstream.url, "--webhook-private") as server:
            yield server, upstream.model()


def is_delivered(run: Run, place: list[str]) -> bool:
    return "\tdelivered\t" in run("webhooks", "deliveries", *place).stdout


def has_more_than(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) > count


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_endpoints_and_deliveries_are_listed_and_sent_again_by_server_or_database(
    run: Run, hooked: tuple[OutliveServer, str], receiver: Receiver
) -> None:
    server, model = hooked
    ends = ["response.completed"]
    made = server.client.post(
        "/v1/webhook_endpoints", {"name": "jobs", "url": receiver.url, "event_types": ends}
    ).json()
    response_id = server.client.create(model).json()["id"]
    receiver.wait_for(("response.completed", response_id))
    (delivery_id,) = {each.headers["webhook-id"] for each in receiver.received}
    for place in (["--server", server.url], ["--database", f"sqlite:///{server.database}"]):
        wait_until(partial(is_delivered, run, place), "it is recorded")
        heading, line = run("webhooks", "list", *place).stdout.splitlines()
        assert heading.startswith("ID\tNAME\tURL\tSTATUS")
        assert line.split("\t")[:4] == [made["id"], "jobs", receiver.url, "enabled"]
        line = run("webhooks", "deliveries", "--endpoint", made["id"], *place).stdout.splitlines()[1]
        assert line.split("\t")[:4] == [delivery_id, "delivered", "response.completed", response_id]
        assert line.endswith("200 delivered")
        sent = len(receiver.received)
        again = run("webhooks", "redeliver", delivery_id, *place)
        assert again.stdout == f"{delivery_id} will be sent again\n", again.stderr
        wait_until(partial(has_more_than, receiver, sent), "it is sent again")
        listed = json.loads(run("webhooks", "list", "--json", *place).stdout)
        assert [each["id"] for each in listed["data"]] == [made["id"]] and "signing_secret" not in listed["data"][0]
        unknown = run("webhooks", "redeliver", "wh_none", *place)
        assert (unknown.exit_code, unknown.stderr) == (
            1,
            "outlive: Webhook delivery with id 'wh_none' not found.\n",
        )
    assert {each.headers["webhook-id"] for each in receiver.received} == {delivery_id}
    other = run("webhooks", "list", "--database", f"sqlite:///{server.database}", "--owner", "bob")
    assert other.stdout.splitlines() == ["ID\tNAME\tURL\tSTATUS\tCREATED"]
    server.client.delete(f"/v1/webhook_endpoints/{made['id']}")


def test_every_command_and_every_program_of_the_page_works(
    hooked: tuple[OutliveServer, str], receiver: Receiver
) -> None:
    server, model = hooked
    create, *commands = blocks("sh")
    python = f'outlive() {{ "{sys.executable}" -m outlive "$@"; }}\n'

    def run_shell(script: str) -> str:
        words = ["bash", "-euo", "pipefail", "-c", python + script]
        environment = {**os.environ, "OUTLIVE_SERVER": server.url}
        done = subprocess.run(words, cwd=server.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    place = create.replace("http://127.0.0.1:7878", server.url).replace("http://127.0.0.1:9000/hooks", receiver.url)
    assert '"signing_secret":"whsec_' in run_shell(place)
    url = receiver.url
    page = [block.replace("http://127.0.0.1:7878", server.url) for block in blocks("python")]
    make, receive, change = (block.replace("https://app.example.com/hooks", url) for block in page)
    names: dict[str, Any] = {}
    exec(make, names)
    sent = len(receiver.received)
    response_id = server.client.create(model).json()["id"]
    wait_until(lambda: len(receiver.received) >= sent + 2, "both endpoints have the event")
    secret = str(names["secret"])
    for received in receiver.received[sent:]:
        names |= {"body": received.body, "headers": received.headers}
        try:
            exec(receive, names)
        except ValueError:
            continue  # of the other endpoint
        assert names["response"].id == response_id and secret.startswith("whsec_")
    wait_until(lambda: "delivered" in run_shell("outlive webhooks deliveries --limit 1"), "it is recorded")
    shown = run_shell("\n".join(commands))
    assert "jobs" in shown and "will be sent again" in shown and response_id in shown
    exec(change, names)
