"""Usage records and policies of owners, on every database."""

from __future__ import annotations

import msgspec
import pytest

from outlive.core.errors import NotFound
from outlive.core.usage import Tokens, UsageRecord, UsageSum
from outlive.ports.ledger import Closing, Entry
from tests.conformance.harness import StorageHarness, frames, storage_test

DAY = 86_400.0


async def end(harness: StorageHarness, owner: str, at: float, model: str = "m", **tokens: int) -> str:
    """Admit a response and end it, with a record of what it used."""
    _, lease = await harness.start(owner=owner)
    record = UsageRecord(
        response_id=lease.response_id,
        owner=owner,
        model=model,
        upstream="up",
        ended_at=at,
        status="completed",
        tokens=Tokens(**tokens),
        attempts=2,
        tool_calls=1,
    )
    entry = Entry(lease, 1, 1, at, frames(1, 1, "response.completed"))
    await harness.storage.ledger.close(Closing(entry, "completed", b"{}", [], True, record))
    return lease.response_id


@storage_test
async def test_a_closing_writes_its_usage_which_is_summed_up_by_any_columns(harness: StorageHarness) -> None:
    usage = harness.storage.usage
    first = await end(harness, "ann", 3 * DAY + 5, input=10, cached=4, output=3, reasoning=1)
    await end(harness, "ann\x1fzoe", 4 * DAY - 1, input=5, output=1, estimated_input=5)
    await end(harness, "ann\x1fzoe", 4 * DAY, model="n", input=7)
    await end(harness, "bob", 4 * DAY, input=1)
    sums = {tuple(each.group.values()): each for each in await usage.sum_up(["owner", "day"], 0.0, 1e12)}
    assert list(sums) == [("ann", 3), ("ann", 4), ("bob", 4)]
    assert sums["ann", 3].tokens == Tokens(15, 4, 4, 1, 5, 0)
    assert (sums["ann", 3].responses, sums["ann", 3].attempts, sums["ann", 3].tool_calls) == (2, 4, 2)
    (zoe,) = await usage.sum_up(["end_user", "model"], 4 * DAY, 5 * DAY, "ann", "zoe")
    assert (zoe.group, zoe.tokens.input) == ({"end_user": "zoe", "model": "n"}, 7)
    assert await usage.sum_up(["model"], 0.0, 3 * DAY) == []
    await harness.storage.ledger.delete("ann", first)
    while await harness.storage.retention.erase(100):
        pass
    (ann,) = await usage.sum_up(["owner"], 0.0, 1e12, "ann")
    assert ann.responses == 3


@storage_test
async def test_sums_of_one_day_are_added_up(harness: StorageHarness) -> None:
    usage = harness.storage.usage
    group = {"owner": "ann", "model": "m\0", "upstream": "up", "day": 20}
    for responses in (1, 2):
        await usage.add_sum(UsageSum(group, Tokens(10, 1, 2, 1, 3, 1), 1, 0, responses))
    await usage.add_sum(UsageSum({**group, "day": 21}, Tokens(1), 1, 0))
    (first, second) = await usage.sum_up(["day", "model", "end_user"], 0.0, 1e12)
    assert (first.group, first.responses) == ({"day": 20, "model": "m", "end_user": None}, 3)
    assert (first.tokens, second.tokens) == (Tokens(20, 2, 4, 2, 6, 2), Tokens(1))


@storage_test
async def test_a_policy_replaces_the_one_before(harness: StorageHarness) -> None:
    usage = harness.storage.usage
    for policy in ({"storage": "never"}, {"models": ["m"]}):
        await usage.set_policy("ann", msgspec.json.encode(policy).decode())
    assert await usage.policies() == {"ann": '{"models":["m"]}'}


@storage_test
async def test_what_an_owner_or_its_end_users_used_last_before_a_time_is_hidden(harness: StorageHarness) -> None:
    retention, catalog = harness.storage.retention, harness.storage.catalog
    mine = [await harness.answer(owner=owner) for owner in ("ann", "ann\x1fzoe")]
    other = await harness.answer(owner="annabel")
    conversation = await harness.converse("hello", owner="ann\x1fzoe")
    late = {"responses_before": 1e9, "conversations_before": 1e9, "at": 1e9, "limit": 100}
    assert await retention.expire(**late | {"responses_before": 0.5, "conversations_before": 0.5}, owner="ann") == 0  # type: ignore[arg-type]
    assert await retention.expire(**late, owner="ann") == 3  # type: ignore[arg-type]
    for owner, response_id in zip(("ann", "ann\x1fzoe"), mine, strict=True):
        assert await catalog.status(owner, response_id) is None
    assert await catalog.status("annabel", other) == "completed"
    with pytest.raises(NotFound):
        await catalog.conversation("ann\x1fzoe", conversation)


@storage_test
async def test_owners_with_a_time_of_their_own_are_left_out_of_the_others_expiry(harness: StorageHarness) -> None:
    retention, catalog = harness.storage.retention, harness.storage.catalog
    kept = [(owner, await harness.answer(owner=owner)) for owner in ("ann", "ann\x1fzoe")]
    conversation = await harness.converse("hello", owner="ann\x1fzoe")
    await harness.answer(owner="annabel")
    await harness.converse("hello", owner="bob\x1fzoe")
    late = {"responses_before": 1e9, "conversations_before": 1e9, "at": 1e9, "limit": 100}
    assert await retention.expire(**late, but=["ann", "cid"]) == 2  # type: ignore[arg-type]
    assert [await catalog.status(*one) for one in kept] == ["completed", "completed"]
    await catalog.conversation("ann\x1fzoe", conversation)
