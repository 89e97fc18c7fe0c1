"""Webhooks survive kill -9: every event is received at least once, with the same id on every attempt."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.crash.conftest import MakeServer
from tests.support.http_client import HttpClient
from tests.support.receiver import HANG, Receiver
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Json
from tests.support.waiting import Stopwatch, wait_until

SEAL = {"OUTLIVE_SEAL_KEY": "a-seal-key-of-the-nodes-that-share-a-database"}
FLAGS = ("--webhook-private", "--webhook-seconds", "1")
# How often the server is killed while it sends: a few times here, 200 times by `make soak`.
KILLS = int(os.environ.get("OUTLIVE_TEST_KILLS", "4"))
ENDS = ["response.completed", "response.failed", "response.cancelled", "response.incomplete"]


def add(client: HttpClient, receiver: Receiver) -> Json:
    answer = client.post("/v1/webhook_endpoints", {"name": "x", "url": receiver.url, "event_types": ENDS})
    assert answer.status == 200, answer
    made: Json = answer.json()
    return made


def check_ids(receiver: Receiver) -> None:
    """Check that every attempt of an event had the same id, and no other event had it."""
    ids = {(each.event, each.headers["webhook-id"]) for each in receiver.received}
    assert len(ids) == len({event for event, _ in ids}) == len({name for _, name in ids})


@pytest.mark.parametrize(
    ("on", "point"),
    [
        ("", "before-commit-of-close"),
        ("", "after-commit-of-close"),
        ("", "after-webhook-sent"),
        ("postgres", "after-commit-of-close"),
    ],
)
def test_an_event_is_sent_though_the_server_was_killed(
    on: str, point: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    with Receiver() as receiver:
        server = make_server(*FLAGS, on=on, **SEAL).start()
        add(server.client, receiver)
        server.kill()
        server.start(OUTLIVE_KILL_AT=point)
        response_id = server.client.submit(upstream.model())
        assert server.wait_exit() == -9
        sent = len(receiver.received)
        assert sent == (1 if point == "after-webhook-sent" else 0)
        server.start()
        status = server.client.wait_ended(response_id)["status"]
        # A run that was killed before its end is interrupted if some of its text was durable, and repeated if none was.
        assert status == "completed" or (status == "incomplete" and point == "before-commit-of-close")
        wait_until(lambda: len(receiver.received) > sent, "the event is sent after the restart")
        assert receiver.events() == [(f"response.{status}", response_id)] * (1 + sent)
        check_ids(receiver)


@pytest.mark.parametrize("trouble", ["down", "500", "hang", "302"])
def test_a_receiver_in_trouble_gets_each_event_after_the_server_was_killed(
    trouble: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    with Receiver() as receiver:
        server = make_server(*FLAGS).start()
        add(server.client, receiver)
        receiver.otherwise = {"500": 500, "hang": HANG, "302": 302, "down": 200}[trouble]
        receiver.headers = {"location": "/elsewhere"}
        if trouble == "down":
            receiver.stop()
        ids = [server.client.submit(upstream.model()) for _ in range(5)]
        for response_id in ids:
            server.client.wait_ended(response_id)
        wait_until(lambda: trouble == "down" or bool(receiver.received), "an attempt is under way")
        server.kill()
        server.start()
        receiver.otherwise = 200
        if trouble == "down":
            receiver.start()
        receiver.wait_for(*(("response.completed", each) for each in ids), seconds=60)
        check_ids(receiver)


def test_another_node_sends_what_a_killed_one_had_claimed(upstream: FakeUpstream, make_server: MakeServer) -> None:
    with Receiver() as receiver:
        first = make_server(*FLAGS, on="postgres", **SEAL).start()
        other = OutliveServer(
            first.folder.parent / "other",
            upstream.url,
            *FLAGS,
            "--lease-seconds",
            "1",
            env=SEAL,
            database_url=first.database_url,
        )
        add(first.client, receiver)
        receiver.otherwise = HANG
        ids = [first.client.submit(upstream.model()) for _ in range(10)]
        for response_id in ids:
            first.client.wait_ended(response_id)
        wait_until(lambda: bool(receiver.received), "an attempt is under way")
        first.kill()
        with other:
            receiver.otherwise = 200
            receiver.wait_for(*(("response.completed", each) for each in ids), seconds=60)
            check_ids(receiver)


@pytest.mark.timeout(120 if KILLS <= 4 else 3600)
def test_every_event_is_received_though_the_server_is_killed_again_and_again(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    watch = Stopwatch()
    chance, wanted = random.Random(7), []
    with Receiver() as receiver:
        server = make_server(*FLAGS, on="postgres" if KILLS > 4 else "", **SEAL).start()
        add(server.client, receiver)
        receiver.headers = {"location": "/elsewhere"}
        for _ in range(KILLS):
            receiver.otherwise = chance.choice([200, 500, HANG, 302])
            ids = [server.client.submit(upstream.model()) for _ in range(3)]
            time.sleep(chance.uniform(0, 0.3))  # to any moment between an end and its event
            server.kill()
            server.start()
            wanted += [(f"response.{server.client.wait_ended(each)['status']}", each) for each in ids]
        receiver.otherwise = 200
        # The pause after the last of many failures is about as long as all before it.
        receiver.wait_for(*wanted, seconds=60 + 2 * watch.seconds)
        assert set(receiver.events()) <= set(wanted)
        check_ids(receiver)
