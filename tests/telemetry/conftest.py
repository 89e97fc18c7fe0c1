"""Fixtures: a scripted upstream, and servers of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fixtures import upstream
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

__all__ = ["upstream"]

Serve = Callable[..., OutliveServer]


@pytest.fixture
def serve(upstream: FakeUpstream, tmp_path: Path) -> Iterator[Serve]:
    """Starts a server with these flags, which is stopped at the test's end."""
    with ExitStack() as stack:

        def start(*flags: str, env: dict[str, str] | None = None) -> OutliveServer:
            return stack.enter_context(OutliveServer(tmp_path, upstream.url, *flags, env=env))

        yield start
