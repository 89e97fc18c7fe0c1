"""Usage: reports of it with their prices, and the sums of what is not stored."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import add

import msgspec

from outlive.core.errors import InvalidRequest, StorageUnavailable
from outlive.core.events import Json
from outlive.core.owners import name_of
from outlive.core.usage import DAY, PriceTable, Tokens, UsageRecord, UsageSum
from outlive.ports.database import Statements

GROUPS = ("owner", "end_user", "model", "day")  # by which usage is reported
MOST_SUMS = 10_000  # held at once: names of models come from clients


@dataclass(eq=False)
class UsageMeter:
    """Counts the usage of responses when they end. Stored ones have a record; of the others only sums by owner, model
    and day are kept (D4), which are written about once a minute and at the end."""

    _database: Statements
    prices: PriceTable
    watch: Callable[[UsageRecord], object] = lambda record: None  # counts it against the owner's limits
    _sums: dict[tuple[str, str, str, int], UsageSum] = field(default_factory=dict)

    def count(self, record: UsageRecord, stored: bool) -> None:
        """Count a response that has ended."""
        self.watch(record)
        if stored or not (record.tokens.input or record.tokens.output):
            return
        key = (name_of(record.owner), record.model, record.upstream, int(record.ended_at // DAY))
        one = UsageSum({}, record.tokens, record.attempts, record.tool_calls)
        if (before := self._sums.get(key)) is not None:
            self._sums[key] = before + one
        elif len(self._sums) < MOST_SUMS:
            self._sums[key] = one

    async def write_sums(self) -> None:
        """Write what was summed up since the last time, or keep it while the storage is down."""
        taken, self._sums = self._sums, {}
        with contextlib.suppress(StorageUnavailable):
            while taken:
                key, each = next(iter(taken.items()))
                owner, model, upstream, day = key
                values = (*msgspec.structs.astuple(each.tokens), each.attempts, each.tool_calls, each.responses)
                group = (owner, model.replace("\0", ""), upstream, day * DAY)
                await self._database.change("add_usage_sum", *group, *values)
                del taken[key]
        for key, each in taken.items():
            self._sums[key] = each + self._sums[key] if key in self._sums else each

    async def report(
        self, by: Sequence[str], start: float, end: float, owner: str | None = None, end_user: str | None = None
    ) -> list[Json]:
        """Return the usage of a time by some of GROUPS, of all owners or of one, with its cost by today's prices."""
        if self._sums:
            await self.write_sums()
        columns = [*by, *(name for name in ("model", "upstream") if name not in by)]
        rows = await self._database.fetch("sum_usage", start, end, owner, end_user, columns=", ".join(columns))
        size = len(columns)
        sums = [
            UsageSum(dict(zip(columns, row[:size], strict=True)), Tokens(*row[size : size + 6]), *row[size + 6 :])
            for row in rows
        ]
        return await asyncio.to_thread(make_report, by, sums, self.prices)


def make_report(by: Sequence[str], rows: list[UsageSum], prices: PriceTable) -> list[Json]:
    """Join sums by models to those that were asked for, and add up their cost."""
    joined: dict[tuple[object, ...], list[UsageSum]] = {}
    for row in rows:
        joined.setdefault(tuple(row.group[name] for name in by), []).append(row)
    report = []
    for key, parts in joined.items():
        group: Json = dict(zip(by, key, strict=True))
        if "day" in group:
            group["day"] = datetime.fromtimestamp(group["day"] * DAY, UTC).date().isoformat()
        total = reduce(add, parts)
        priced = [(part, prices.find(part.group["model"], part.group["upstream"])) for part in parts]
        shown = {
            "object": "usage",
            **group,
            "responses": total.responses,
            **{f"{name}_tokens": count for name, count in msgspec.structs.asdict(total.tokens).items()},
            "attempts": total.attempts,
            "tool_calls": total.tool_calls,
            "currency": prices.currency,
            "cost": round(sum(price.of(part.tokens) for part, price in priced if price is not None), 6),
            "unpriced_models": sorted({str(part.group["model"]) for part, price in priced if price is None}),
        }
        report.append(shown)
    return report


def read_time(text: str | None, param: str, default: float) -> float:
    """Read a day such as 2026-11-18, in UTC, or a Unix time."""
    if not text:
        return default
    try:
        if text.replace(".", "", 1).isdigit():
            return float(text)
        day = datetime.fromisoformat(text)
        return (day if day.tzinfo is not None else day.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise InvalidRequest(f"{param} must be a day such as 2026-11-18, or a Unix time.", param=param) from None
