"""What owners may do: storage, models, limits per minute, budgets and retention, on one node and on several."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import Forbidden, InvalidRequest, NotFound, OverBudget, RateLimited, TooMany
from outlive.core.owners import Policy, RateState
from outlive.core.usage import DAY, Price, PriceTable, Tokens, UsageRecord
from outlive.engine.policies import Policies
from outlive.engine.slots import Capacity, Slots
from outlive.engine.usage import UsageMeter
from outlive.storage.postgres.connection import PostgresDatabase
from outlive.testing import Script, finish_chunk, usage_chunk
from tests.engine.harness import FixedClock, Harness, run_with_harness
from tests.support.postgres import DATABASES

DONE: Script = ["Hello", finish_chunk(), usage_chunk(600, 400)]
Body = Callable[[Harness], Awaitable[None]]


def run(path: Path, body: Body, *scripts: Script, **policy: Any) -> None:
    capacity = Capacity(running=100, queued=100, policies={"ann": Policy(**policy)})
    run_with_harness(path, body, *(scripts or (DONE,)), capacity=capacity)


async def answer(harness: Harness, owner: str = "ann", **fields: Any) -> RateState | None:
    accepted = await harness.create(owner=owner, **fields)
    await harness.reader.wait_end(accepted.response_id)
    return accepted.rate


def test_an_owner_that_may_not_store_gets_responses_that_are_not(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        modes: list[dict[str, Any]] = [{}, {"store": True}, {"stream": True}]
        for fields in modes:
            accepted = await harness.create(owner="ann\x1fzoe", **fields)
            assert not accepted.request.store
            await harness.reader.wait_end(accepted.response_id)
            harness.ephemeral.discard(accepted.response_id)
        assert (await harness.create(owner="bob")).request.store
        refusals: list[dict[str, Any]] = [{"background": True}, {"conversation": "conv_1"}]
        for fields in refusals:
            with pytest.raises(InvalidRequest, match="storage") as refused:
                await harness.create(**fields)
            assert [refused.value.param] == list(fields)
        with pytest.raises(InvalidRequest) as refused:
            await harness.create(outlive={"expires_after_days": 1})
        assert refused.value.param == "outlive.expires_after_days"
        with pytest.raises(Forbidden, match="storage") as forbidden:
            await harness.engine.create_conversation("ann", {}, [], None, False)
        assert forbidden.value.code == "storage_not_allowed"
        rows = await harness.database.fetch("SELECT DISTINCT owner FROM responses")
        assert rows == [("bob",)]

    run(tmp_path, body, storage="never")


def test_other_models_seem_not_to_exist(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await answer(harness)
        with pytest.raises(NotFound) as refused:
            await harness.create(model="other")
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        await answer(harness, owner="bob", model="other")
        assert await harness.engine.list_models("ann") == []
        assert [model["id"] for model in await harness.engine.list_models("bob")] == ["scripted"]

    run(tmp_path, body, models=["m"])


def test_requests_per_minute_are_counted_over_all_end_users(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.clock.time = 600.0
        assert await answer(harness, owner="bob") is None
        states = [await answer(harness, owner=owner) for owner in ("ann", "ann\x1fzoe")]
        assert [state and state.headers()["x-ratelimit-remaining-requests"] for state in states] == ["1", "0"]
        harness.clock.time += 15
        with pytest.raises(RateLimited, match="2 requests per minute") as refused:
            await harness.create(owner="ann\x1ftom", store=False)
        assert refused.value.retry_after == 45
        assert refused.value.headers == {
            "x-ratelimit-limit-requests": "2",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "45s",
        }
        harness.clock.time += 45
        await answer(harness)

    run(tmp_path, body, requests_per_minute=2)


def test_tokens_per_minute_are_counted_when_responses_end(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.clock.time = 600.0
        for _ in range(2):
            await answer(harness)
        with pytest.raises(RateLimited, match="1500 tokens per minute"):
            await harness.create()
        harness.clock.time += 60
        state = await answer(harness, store=False)
        assert state is not None and state.headers()["x-ratelimit-remaining-tokens"] == "1500"

    run(tmp_path, body, tokens_per_minute=1500)


def test_a_budget_is_kept_across_restarts_and_begins_anew_each_month(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.engine.usage.prices = PriceTable({"m": Price(input=1000.0, output=1000.0)}, "EUR")
        policies = harness.engine.policies
        await policies.refresh()
        for _ in range(2):
            await answer(harness)
        with pytest.raises(OverBudget, match=r"1\.5 EUR per month") as refused:
            await harness.create()
        error = refused.value
        assert (error.code, error.should_retry, error.retry_after) == ("insufficient_quota", False, None)
        policies._spent.clear()  # as after a restart
        await policies.refresh()
        with pytest.raises(OverBudget, match=r"2\.00 EUR"):
            await harness.create()
        harness.clock.time += 40 * DAY
        await policies.refresh()
        await answer(harness)

    run(tmp_path, body, budget_per_month=1.5)


def test_policies_of_the_database_win_key_by_key_within_a_look(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        policies, change = harness.engine.policies, harness.database.change
        await change("set_policy", "ann", json.dumps({"max_running": 7}))
        await change("set_policy", "bob", json.dumps({"storage": "never"}))
        await policies.refresh()
        assert policies.find("ann\x1fzoe") == Policy(models=["m"], max_running=7)
        assert not (await harness.create(owner="bob")).request.store
        await change("set_policy", "bob", json.dumps({"colour": 1, "max_running": "many"}))
        await policies.refresh()
        with pytest.raises(NotFound):  # what cannot be read forbids all
            await harness.create(owner="bob")

    run(tmp_path, body, models=["m"])


def test_slots_are_limited_by_policy_over_all_end_users() -> None:
    policies = {"ann": Policy(max_running=1, max_waiting=1), "bob": Policy(max_running=2)}
    slots = Slots(Capacity(running=10, queued=10, running_per_owner=3, policies=policies))
    assert slots.take("ann\x1fzoe") and not slots.take("ann\x1ftom") and not slots.take("ann")
    slots.enqueue("ann\x1ftom")
    with pytest.raises(TooMany):
        slots.enqueue("ann")
    assert [slots.take("bob") for _ in range(3)] == [True, True, False]
    assert [slots.take("cid") for _ in range(4)] == [True, True, True, False]
    assert slots.busy_owners() == {"ann", "bob", "cid"}
    slots.release("ann\x1fzoe")
    slots.take_for_queued("ann\x1ftom")
    assert (slots.queued.total(), slots.taken["ann"]) == (0, 1)


def test_an_owner_may_keep_things_for_a_shorter_time(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        old = [await harness.answer(owner=owner) for owner in ("ann", "ann\x1fzoe", "annabel")]
        await harness.engine.create_conversation("ann", {}, [], None, False)
        harness.clock.time += 3 * DAY
        harness.sweeper._clocks_apart = harness.clock.now() - harness.clock.monotonic()
        await harness.sweeper.sweep()
        rows = await harness.database.fetch("SELECT owner, hidden FROM responses ORDER BY key")
        assert rows == [("ann", 1), ("ann\x1fzoe", 1), ("annabel", 0)] and len(old) == 3
        assert await harness.database.fetch("SELECT hidden FROM conversations") == [(1,)]

    run(tmp_path, body, retention_days=2.0)


def test_an_owner_may_keep_things_for_a_longer_time(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        for owner in ("ann", "ann\x1fzoe", "annabel"):
            await harness.answer(owner=owner)
        for days, expected in (
            (50, {("ann", 0), ("ann\x1fzoe", 0), ("annabel", 1)}),
            (51, {("ann", 1), ("ann\x1fzoe", 1)}),
        ):
            harness.clock.time += days * DAY
            harness.sweeper._clocks_apart = harness.clock.now() - harness.clock.monotonic()
            await harness.sweeper.sweep()
            assert set(await harness.database.fetch("SELECT owner, hidden FROM responses")) == expected

    run(tmp_path, body, retention_days=100.0)


def test_a_response_that_was_used_since_it_was_found_does_not_expire(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await harness.answer()
        read = harness.database.fetch

        async def read_and_use(statement: str, *values: Any, **parts: str) -> list[Any]:
            found = await read(statement, *values, **parts)
            await harness.database.change("UPDATE threads SET used_at = 2e9")
            return found

        harness.database.fetch = read_and_use  # type: ignore[method-assign]
        times = {"responses_before": 1.9e9, "conversations_before": None, "at": 2e9, "limit": 100}
        assert await harness.retention.expire(**times) == 0  # type: ignore[arg-type]
        assert await harness.retention.expire(**times | {"responses_before": 2.1e9}) == 1  # type: ignore[arg-type]

    run(tmp_path, body)


def test_limits_per_minute_hold_across_nodes() -> None:
    """Two nodes on one Postgres admit together what one may alone, and know of each other's tokens."""

    async def body() -> None:
        database = await PostgresDatabase.open(DATABASES.create())
        clock, given = FixedClock(), Policy(requests_per_minute=5, tokens_per_minute=100)
        meters = [UsageMeter(database, PriceTable()) for _ in range(2)]
        nodes = [Policies({"ann": given}, database, meter, clock, True) for meter in meters]
        admitted = 0
        for n in range(10):
            with contextlib.suppress(RateLimited):
                await nodes[n % 2].admit("ann")
                admitted += 1
        assert admitted == 5
        clock.time += 60
        about = {"response_id": "resp_1", "owner": "ann\x1fzoe", "model": "m", "upstream": "up", "status": "completed"}
        meters[0].count(UsageRecord(ended_at=1.0, tokens=Tokens(80, 0, 20), **about), True)  # type: ignore[arg-type]
        await nodes[0].refresh()
        await nodes[1].admit("ann")  # learns of the tokens in the same statement, so it is the last
        with pytest.raises(RateLimited, match="tokens"):
            await nodes[1].admit("ann")
        clock.time += 60
        await nodes[1].admit("ann")
        await nodes[0].refresh()
        minute = int(clock.time // 60)
        ((requests, tokens),) = await database.change("count_minute", "ann", minute - 2, 0, 0)
        assert (requests, tokens) == (0, 0)  # the first was deleted
        ((_, tokens),) = await database.change("count_minute", "ann", minute - 1, 0, 0)
        assert tokens == 100
        await database.close()

    asyncio.run(body())
