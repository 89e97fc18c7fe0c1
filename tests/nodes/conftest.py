"""Fixtures: a scripted upstream, and clusters of servers on one Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.fixtures import upstream
from tests.support.upstream import FakeUpstream

__all__ = ["upstream"]

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def three_nodes(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all tests that kill none, with an upstream that can continue an answer."""
    folder = tmp_path_factory.mktemp("three-nodes")
    with Cluster(folder, upstream.url, continuation="prefill", lease=10.0) as cluster:
        yield cluster.start(3)


@pytest.fixture
def make_cluster(tmp_path: Path, upstream: FakeUpstream) -> Iterator[MakeCluster]:
    """Makes a cluster of the test's own, which is stopped at its end."""
    with ExitStack() as stack:

        def make(*flags: str) -> Cluster:
            return stack.enter_context(Cluster(tmp_path, upstream.url, *flags, continuation="prefill"))

        yield make
