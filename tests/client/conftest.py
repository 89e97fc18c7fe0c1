"""Fixtures: a live server, a scripted upstream, and clients of the official SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from outlive.client import RetryPolicy
from tests.support.fixtures import server, stub, upstream
from tests.support.server import OutliveServer

__all__ = ["server", "stub", "upstream"]


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture
def fast_policy() -> RetryPolicy:
    """The default limits with short delays."""
    return RetryPolicy(first_delay=0.005, longest_delay=0.1)
