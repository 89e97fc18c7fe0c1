"""Deliveries on a clock that stands still: how often, how many at once, for how long, and with which secrets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import Forbidden, InvalidRequest, StorageUnavailable, TooMany
from outlive.core.events import Json
from outlive.core.owners import join
from outlive.engine import webhooks
from outlive.engine.webhooks import OVERALL, TO_ONE, Webhooks
from outlive.ports.catalog import Paging
from outlive.ports.webhooks import Answer
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, answer
from tests.engine.harness import Harness, run_with_harness

DONE: Script = [answer("Well.")]
SEAL = SecretSeal([b"s" * 32])
OK, BROKEN = Answer(204, "delivered"), Answer(500, "refused")
FIELDS: Json = {"name": "x", "url": "https://example.com/", "event_types": ["response.completed"]}
PAGE = Paging(None, 100)


class FakeSender:
    """Answers as it is set to, at once or when `gate` is open, and counts."""

    def __init__(self) -> None:
        self.answer = OK
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent: list[tuple[str, dict[str, str]]] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_overall = 0

    def check(self, url: str) -> None:
        pass

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        self.sent.append((url, headers))
        self.running[url] += 1
        self.most[url] = max(self.most[url], self.running[url])
        self.most_overall = max(self.most_overall, self.running.total())
        await self.gate.wait()
        self.running[url] -= 1
        return self.answer


def make(harness: Harness, sender: FakeSender, seal: SecretSeal | None = SEAL) -> Webhooks:
    return Webhooks(harness.database, sender, seal, harness.clock, harness.ids, "worker")


@asynccontextmanager
async def delivering(hooks: Webhooks) -> AsyncIterator[None]:
    task = asyncio.create_task(hooks.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def show(hooks: Webhooks) -> list[Json]:
    return (await hooks.list_deliveries("ann", "", PAGE)).data


async def until(hooks: Webhooks, attempts: int) -> Json:
    """Wait until the newest delivery has had so many attempts."""
    async with asyncio.timeout(30):
        while len((shown := (await show(hooks))[0])["attempts"]) < attempts:
            await asyncio.sleep(0.01)
    return shown


def test_attempts_go_on_for_three_days_with_growing_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.005)

    async def body(harness: Harness) -> None:
        sender = FakeSender()
        sender.answer = BROKEN
        hooks = make(harness, sender)
        await hooks.create("ann", FIELDS)
        await harness.answer()
        began = harness.clock.time
        async with delivering(hooks):
            attempts = 0
            while True:
                attempts += 1
                shown = await until(hooks, attempts)
                if shown["status"] != "pending":
                    break
                harness.clock.time = shown["next_attempt_at"]
        times = [each["at"] - began for each in shown["attempts"]]
        assert shown["status"] == "failed" and 70 * 3600 < times[-1] <= 72 * 3600
        pauses = [after - before for before, after in pairwise(times)]
        assert 0.75 <= pauses[0] <= 1.25 and all(2700 <= pause <= 4500 for pause in pauses[12:])
        assert "giving up webhook delivery" in caplog.text

    run_with_harness(tmp_path, body, DONE)


def test_attempts_at_once_are_bounded_for_an_endpoint_and_in_all(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        sender = FakeSender()
        sender.gate.clear()
        hooks = make(harness, sender)
        for number in range(20):
            await hooks.create("ann", FIELDS | {"url": f"https://{number}.example/"})
        for _ in range(6):
            await harness.answer()
        async with delivering(hooks), asyncio.timeout(30):
            while sender.running.total() < OVERALL:
                await asyncio.sleep(0.01)
            sender.gate.set()
            while len(sender.sent) < 120:
                await asyncio.sleep(0.01)
        assert max(sender.most.values()) == TO_ONE and sender.most_overall == OVERALL
        assert len({headers["webhook-id"] for _, headers in sender.sent}) == 120

    run_with_harness(tmp_path, body, *([DONE[0]] for _ in range(6)))


def test_an_endpoint_that_failed_gets_one_attempt_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.005)

    async def body(harness: Harness) -> None:
        sender = FakeSender()
        sender.answer = BROKEN
        hooks = make(harness, sender)
        await hooks.create("ann", FIELDS)
        await harness.answer()
        async with delivering(hooks):
            await until(hooks, 1)
            sender.gate.clear()
            for _ in range(5):
                await harness.answer()
            harness.clock.time += 10
            async with asyncio.timeout(30):
                while not sender.running.total():
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert sender.running.total() == 1

    run_with_harness(tmp_path, body, *([DONE[0]] for _ in range(6)))


def test_an_attempt_is_recorded_once_the_storage_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.005)

    async def body(harness: Harness) -> None:
        failures = 3

        change = harness.database.change

        async def fail_to_record(statement: str, *values: Any, **parts: str) -> list[Any]:
            nonlocal failures
            failures -= statement == "record_attempt"
            if statement == "record_attempt" and failures >= 0:
                raise StorageUnavailable("record", "a test says so")
            return await change(statement, *values, **parts)

        harness.database.change = fail_to_record  # type: ignore[method-assign]
        sender = FakeSender()
        hooks = make(harness, sender)
        await hooks.create("ann", FIELDS)
        await harness.answer()
        async with delivering(hooks):
            assert (await until(hooks, 1))["status"] == "delivered"
        assert len(sender.sent) == 1

    run_with_harness(tmp_path, body, DONE)


def test_an_unforeseen_error_of_one_endpoint_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenSender(FakeSender):
        async def send(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
            if "broken" in url:
                raise OverflowError("a bug")
            return await super().send(url, headers, body)

    async def body(harness: Harness) -> None:
        hooks = make(harness, BrokenSender())
        for host in ("broken", "whole"):
            await hooks.create("ann", FIELDS | {"name": host, "url": f"https://{host}.example/"})
        await harness.answer()
        async with delivering(hooks), asyncio.timeout(30):
            while not all(each["attempts"] for each in await show(hooks)):
                await asyncio.sleep(0.01)
        ends = sorted((each["status"], each["attempts"][0]["reason"]) for each in await show(hooks))
        assert ends == [("delivered", "delivered"), ("pending", "this server could not send it")]
        assert "sending webhook failed" in caplog.text

    run_with_harness(tmp_path, body, DONE)


def test_the_secret_of_an_endpoint_is_stored_sealed(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        hooks = make(harness, FakeSender())
        made = await hooks.create("ann", FIELDS)
        ((sealed,),) = await harness.database.fetch("SELECT sealed FROM webhook_endpoints")
        assert sealed and made["signing_secret"].encode()[6:] not in sealed
        assert "signing_secret" not in await hooks.get("ann", made["id"])
        other = make(harness, FakeSender(), SecretSeal([b"o" * 32]))
        with pytest.raises(InvalidRequest, match="sealed with another key"):
            await other.test("ann", made["id"], "response.completed")
        with pytest.raises(InvalidRequest, match="OUTLIVE_SEAL_KEY"):
            await make(harness, FakeSender(), None).create("ann", FIELDS)

    run_with_harness(tmp_path, body)


def test_a_kept_secret_signs_for_a_day(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        sender = FakeSender()
        hooks = make(harness, sender)
        made = await hooks.create("ann", FIELDS)
        await hooks.rotate("ann", made["id"], True)
        for wait, signatures in ((0, 2), (86_399, 2), (1, 1)):
            harness.clock.time += wait
            await hooks.test("ann", made["id"], "response.completed")
            assert len(sender.sent[-1][1]["webhook-signature"].split()) == signatures

    run_with_harness(tmp_path, body)


def test_tests_of_one_endpoint_at_once_are_bounded(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        sender = FakeSender()
        sender.gate.clear()
        hooks = make(harness, sender)
        made = await hooks.create("ann", FIELDS)
        tests = [asyncio.create_task(hooks.test("ann", made["id"], "response.failed")) for _ in range(TO_ONE)]
        async with asyncio.timeout(30):
            while sender.running.total() < TO_ONE:
                await asyncio.sleep(0.01)
        with pytest.raises(TooMany):
            await hooks.test("ann", made["id"], "response.failed")
        sender.gate.set()
        assert await asyncio.gather(*tests) == [204] * TO_ONE
        assert await hooks.test("ann", made["id"], "response.failed") == 204

    run_with_harness(tmp_path, body)


def test_a_request_for_an_end_user_is_refused(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        hooks = make(harness, FakeSender())
        made = await hooks.create("ann", FIELDS)
        user = join("ann", "u1")
        with pytest.raises(Forbidden):
            await hooks.create(user, FIELDS)
        with pytest.raises(Forbidden):
            await hooks.get(user, made["id"])
        with pytest.raises(Forbidden):
            await hooks.list_deliveries(user, "", PAGE)

    run_with_harness(tmp_path, body)
