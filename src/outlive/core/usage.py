"""Token counts in the shape of the Responses API, their sums, and the record of what a response used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from outlive.core.events import Json
from outlive.core.owners import split
from outlive.core.recovery import OpenText

DAY = 86_400.0  # seconds
MOST_TOKENS = 1 << 40  # of one response; sums of many such still fit into the integers of a database


def make_usage(
    resume: OpenText | None, *, given: int, written: int, cached: int, cache_write: int, reasoning: int
) -> Json:
    """Make the usage object of the Responses API; what an earlier attempt wrote is counted, too."""
    written += resume.deltas if resume is not None else 0
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cache_write},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + written,
    }


# The usage of a response that did not ask a model.
NOTHING_USED = make_usage(None, given=0, written=0, cached=0, cache_write=0, reasoning=0)


def add_usage(one: Json | None, other: Json | None) -> Json | None:
    """Add two usages; a count that one of them lacks is 0."""
    if one is None or other is None:
        return other if one is None else one
    total: Json = {}
    for name in {**one, **other}:
        left, right = one.get(name), other.get(name)
        nested = isinstance(left, dict) or isinstance(right, dict)
        total[name] = add_usage(left, right) if nested else (left or 0) + (right or 0)
    return total


class Tokens(msgspec.Struct, frozen=True):
    """Token counts. Those that no upstream reported are estimated, and counted a second time as such."""

    input: int = 0
    cached: int = 0  # of the input
    output: int = 0
    reasoning: int = 0  # of the output
    estimated_input: int = 0
    estimated_output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Tokens(*(one + another for one, another in pairs))


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one response used: no content. It stays when the response is deleted."""

    response_id: str
    owner: str  # as its rows carry it
    model: str  # as the request names it
    upstream: str
    ended_at: float
    status: str
    tokens: Tokens = Tokens()
    attempts: int = 1
    tool_calls: int = 0

    def to_row(self) -> tuple[object, ...]:
        """Return the values of its row in a database."""
        about = (self.response_id, *split(self.owner), self.model, self.upstream, self.ended_at, self.status)
        return (*about, *msgspec.structs.astuple(self.tokens), self.attempts, self.tool_calls)


class UsageSum(msgspec.Struct, frozen=True):
    """What several responses used."""

    group: Json  # the columns that they share, such as the model
    tokens: Tokens
    attempts: int
    tool_calls: int
    responses: int = 1

    def __add__(self, other: UsageSum) -> UsageSum:
        counts = zip(msgspec.structs.astuple(self)[2:], msgspec.structs.astuple(other)[2:], strict=True)
        return UsageSum(self.group, self.tokens + other.tokens, *(one + another for one, another in counts))


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model's tokens, per million."""

    input: Annotated[float, Meta(ge=0)]
    output: Annotated[float, Meta(ge=0)]
    cached_input: Annotated[float | None, Meta(ge=0)] = None  # None: as other input

    def of(self, tokens: Tokens) -> float:
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = max(tokens.input - tokens.cached, 0)
        return (fresh * self.input + tokens.cached * cached + tokens.output * self.output) / 1e6


class PriceTable(msgspec.Struct, frozen=True):
    """Prices by model, and the currency that they are in."""

    given: dict[str, Price] = {}
    currency: str = "USD"
    look_up: Callable[[str, str], Price | None] | None = None  # finds other models, by name and upstream

    def find(self, model: str, upstream: str) -> Price | None:
        """Return the price of a model as requests name it: with the upstream's name before it, or without."""
        name = model.removeprefix(f"{upstream}/")
        if (price := self.given.get(model) or self.given.get(name)) is not None or self.look_up is None:
            return price
        return self.look_up(name, upstream)


def count_tokens(shown: Json | None, reported: Json | None, estimated: tuple[int, int]) -> Tokens:
    """Count the tokens of a response: those that upstreams reported for all attempts, and what is estimated besides, of
    input and output. `shown` is the usage in its final object, which counts text that was continued by its deltas."""
    given, written = read_count(reported, "input_tokens"), read_count(reported, "output_tokens")
    more_given, more_written = estimated
    if shown is not reported:  # it is, where one attempt made the whole answer
        more_given = max(read_count(shown, "input_tokens") - given, more_given)
        more_written = max(read_count(shown, "output_tokens") - written, more_written)
    cached = read_count((reported or {}).get("input_tokens_details"), "cached_tokens")
    reasoning = read_count((reported or {}).get("output_tokens_details"), "reasoning_tokens")
    return Tokens(given + more_given, cached, written + more_written, reasoning, more_given, more_written)


def read_count(counts: object, name: str) -> int:
    """Return a count that an upstream reported: 0 if it is missing or no number, and none that is absurd."""
    if not isinstance(counts, dict) or not isinstance(value := counts.get(name), int):
        return 0
    return value if 0 <= value <= MOST_TOKENS else min(max(value, 0), MOST_TOKENS)


def drop_resumed(usage: Json, deltas: int) -> Json:
    """Return usage without the deltas of earlier attempts that `make_usage` has added."""
    names = ("output_tokens", "total_tokens")
    return usage | {name: max(read_count(usage, name) - deltas, 0) for name in names} if deltas else usage
