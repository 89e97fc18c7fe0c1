"""Fixtures: a live server, a scripted upstream, and clients of the official SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from outlive.client import RetryPolicy
from tests.client.stub import Stub
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """A server that stays up; tests that kill a server start their own."""
    with OutliveServer(tmp_path_factory.mktemp("server"), upstream.url) as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A server other than Outlive, whose answers the test scripts."""
    with Stub() as running:
        yield running


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture
def fast_policy() -> RetryPolicy:
    """The default limits with short delays."""
    return RetryPolicy(first_delay=0.005, longest_delay=0.1)
