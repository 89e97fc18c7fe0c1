"""Counts of what a server does: plain numbers, added to where things happen and read when metrics are asked for."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from outlive.core.endings import Outcome
from outlive.core.errors import UpstreamFault
from outlive.core.owners import name_of

# Upper bounds of buckets: seconds of work within the server, and events of one commit.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

# Stands for a model that the settings do not name: clients may send any, and each would be a time series.
OTHER_MODEL = "other"


class Histogram:
    """Counts values by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last counts what is above all bounds
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True, eq=False)
class Counts:
    """Everything that the engine counts, since the process started, by the names of its metrics but for `_total`. Keys
    are bounded: no id and no content."""

    models: frozenset[str] = frozenset()  # the names that the settings list
    responses_admitted: Counter[str] = field(default_factory=Counter)  # by model
    retries_attached: int = 0  # repeated creates that were given an earlier response
    ended: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by status, error code and owner
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)  # by model and direction
    events: int = 0
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    commit_events: Histogram = field(default_factory=lambda: Histogram(EVENTS))
    commits_failed: int = 0
    first_token_added_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    takeovers: int = 0
    continuations: Counter[str] = field(default_factory=Counter)  # by action
    resumes: int = 0
    upstream_requests: Counter[tuple[str, str]] = field(default_factory=Counter)  # by upstream and outcome
    tool_calls: Counter[str] = field(default_factory=Counter)  # by outcome
    packed_responses: int = 0
    packed_bytes: Counter[str] = field(default_factory=Counter)  # of their journals, before and after

    def name_model(self, model: str) -> str:
        """Return the model's name if the settings list it."""
        return model if model in self.models else OTHER_MODEL

    def count_request(self, upstream: str, fault: UpstreamFault | None = None, status: int | None = 200) -> None:
        """Count a request to an upstream: ok, timeout, broken (no status), or the class of its status."""
        status = status if fault is None else fault.status
        if status is None:
            outcome = "timeout" if fault is not None and fault.timed_out else "broken"
        elif fault is None and status < 400:
            outcome = "ok"
        else:
            outcome = "429" if status == 429 else f"{status // 100}xx"
        self.upstream_requests[upstream, outcome] += 1

    def count_end(self, owner: str, model: str, outcome: Outcome) -> None:
        """Count a response whose terminal event is durable."""
        code = str(outcome.error["code"]) if outcome.error is not None else outcome.reason or ""
        self.ended[outcome.status, code, name_of(owner)] += 1
        usage, name = outcome.usage or {}, self.name_model(model)
        self.tokens[name, "input"] += usage.get("input_tokens") or 0
        self.tokens[name, "output"] += usage.get("output_tokens") or 0
