"""Usage records and policies of owners, on every database."""

from __future__ import annotations

import msgspec
import pytest

from outlive.core.errors import NotFound
from outlive.core.events import Json
from outlive.core.usage import DAY, PriceTable, Tokens, UsageRecord
from outlive.engine.usage import UsageMeter
from outlive.ports.ledger import Closing, Entry
from tests.conformance.harness import StorageHarness, frames, storage_test


def make_record(response_id: str, owner: str, at: float, model: str = "m", **tokens: int) -> UsageRecord:
    return UsageRecord(
        response_id=response_id,
        owner=owner,
        model=model,
        upstream="up",
        ended_at=at,
        status="completed",
        tokens=Tokens(**tokens),
        attempts=2,
        tool_calls=1,
    )


async def end(harness: StorageHarness, owner: str, at: float, model: str = "m", **tokens: int) -> str:
    """Admit a response and end it, with a record of what it used."""
    _, lease = await harness.start(owner=owner)
    record = make_record(lease.response_id, owner, at, model, **tokens)
    entry = Entry(lease, 1, 1, at, frames(1, 1, "response.completed"))
    await harness.storage.ledger.close(Closing(entry, "completed", b"{}", [], True, record))
    return lease.response_id


def read_tokens(row: Json) -> Tokens:
    return Tokens(*(row[f"{name}_tokens"] for name in Tokens.__struct_fields__))


@storage_test
async def test_a_closing_writes_its_usage_which_is_summed_up_by_any_columns(harness: StorageHarness) -> None:
    usage = UsageMeter(harness.storage.database, PriceTable())
    first = await end(harness, "ann", 3 * DAY + 5, input=10, cached=4, output=3, reasoning=1)
    await end(harness, "ann\x1fzoe", 4 * DAY - 1, input=5, output=1, estimated_input=5)
    await end(harness, "ann\x1fzoe", 4 * DAY, model="n", input=7)
    await end(harness, "bob", 4 * DAY, input=1)
    sums = {(each["owner"], each["day"]): each for each in await usage.report(["owner", "day"], 0.0, 1e12)}
    assert list(sums) == [("ann", "1970-01-04"), ("ann", "1970-01-05"), ("bob", "1970-01-05")]
    ann = sums["ann", "1970-01-04"]
    assert read_tokens(ann) == Tokens(15, 4, 4, 1, 5, 0)
    assert (ann["responses"], ann["attempts"], ann["tool_calls"]) == (2, 4, 2)
    (zoe,) = await usage.report(["end_user", "model"], 4 * DAY, 5 * DAY, "ann", "zoe")
    assert (zoe["end_user"], zoe["model"], zoe["input_tokens"]) == ("zoe", "n", 7)
    assert await usage.report(["model"], 0.0, 3 * DAY) == []
    await harness.storage.ledger.delete("ann", first)
    while await harness.storage.retention.erase(100):
        pass
    (ann,) = await usage.report(["owner"], 0.0, 1e12, "ann")
    assert ann["responses"] == 3


@storage_test
async def test_sums_of_one_day_are_added_up(harness: StorageHarness) -> None:
    usage = UsageMeter(harness.storage.database, PriceTable())
    tokens = {"input": 10, "cached": 1, "output": 2, "reasoning": 1, "estimated_input": 3, "estimated_output": 1}
    for responses in (1, 2):
        for _ in range(responses):
            usage.count(make_record("", "ann\x1fzoe", 20 * DAY + 5, "m\0", **tokens), False)
        await usage.write_sums()
    usage.count(make_record("", "ann", 21 * DAY, "m\0", input=1), False)
    await usage.write_sums()
    (first, second) = await usage.report(["day", "model", "end_user"], 0.0, 1e12)
    assert (first["day"], first["model"], first["end_user"]) == ("1970-01-21", "m", None)
    assert (first["responses"], first["attempts"], first["tool_calls"]) == (3, 6, 3)
    assert (read_tokens(first), read_tokens(second)) == (Tokens(30, 3, 6, 3, 9, 3), Tokens(1))


@storage_test
async def test_a_policy_replaces_the_one_before(harness: StorageHarness) -> None:
    database = harness.storage.database
    for policy in ({"storage": "never"}, {"models": ["m"]}):
        await database.change("set_policy", "ann", msgspec.json.encode(policy).decode())
    assert dict(await database.fetch("list_policies")) == {"ann": '{"models":["m"]}'}


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
