"""Counts: buckets of histograms, and bounded labels."""

from __future__ import annotations

import pytest

from outlive.core.counts import OTHER_MODEL, Counts, Histogram
from outlive.core.endings import Outcome
from outlive.core.errors import UpstreamFault


def test_a_value_is_counted_in_the_first_bucket_that_reaches_it() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 6, 100):
        histogram.add(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert histogram.total == 114


def test_a_model_that_the_settings_do_not_list_is_counted_as_other() -> None:
    counts = Counts(frozenset({"fast"}))
    usage = {"input_tokens": 3, "output_tokens": 4}
    for model in ("fast", "made-up-1", "made-up-2"):
        counts.count_end("alice", model, Outcome(status="completed", at=1, usage=usage))
    assert counts.ended == {("completed", "", "alice"): 3}
    assert counts.tokens == {
        ("fast", "input"): 3,
        ("fast", "output"): 4,
        (OTHER_MODEL, "input"): 6,
        (OTHER_MODEL, "output"): 8,
    }


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(status="failed", at=1, error={"code": "server_error", "message": "m"}), "server_error"),
        (Outcome(status="incomplete", at=1, reason="max_output_tokens"), "max_output_tokens"),
        (Outcome(status="cancelled", at=1), ""),
    ],
)
def test_an_end_is_counted_with_the_code_of_its_error_or_its_reason(outcome: Outcome, code: str) -> None:
    counts = Counts()
    counts.count_end("alice", "any", outcome)
    assert counts.ended == {(outcome.status, code, "alice"): 1}


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (None, "ok"),
        (UpstreamFault("m", timed_out=True), "timeout"),
        (UpstreamFault("m"), "broken"),
        (UpstreamFault("m", status=429), "429"),
        (UpstreamFault("m", status=404), "4xx"),
        (UpstreamFault("m", status=503), "5xx"),
    ],
)
def test_a_request_to_an_upstream_is_counted_by_its_outcome(fault: UpstreamFault | None, outcome: str) -> None:
    counts = Counts()
    counts.count_request("vllm", fault)
    assert counts.upstream_requests == {("vllm", outcome): 1}
