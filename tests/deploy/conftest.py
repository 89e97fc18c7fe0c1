"""Fixtures: a scripted upstream, and servers behind each real proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.reverse_proxies import PROXIES, ReverseProxy
from tests.support.fixtures import upstream
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

__all__ = ["upstream"]

Behind = Callable[..., ReverseProxy]


@pytest.fixture(params=PROXIES)
def kind(request: pytest.FixtureRequest) -> str:
    """The proxy's name, for tests that run with each."""
    return str(request.param)


@pytest.fixture
def behind(kind: str, upstream: FakeUpstream, tmp_path: Path) -> Iterator[Behind]:
    """Starts a server with these flags behind a proxy with these changes of its configuration."""
    proxy_class = PROXIES[kind]
    if not proxy_class.is_installed():
        pytest.skip(f"needs {kind}: apt-get install {proxy_class.package}")
    with ExitStack() as stack:

        def start(*flags: str, changes: dict[str, str] | None = None, root: str = "") -> ReverseProxy:
            server = stack.enter_context(OutliveServer(tmp_path / "server", upstream.url, *flags))
            (tmp_path / "proxy").mkdir()
            return stack.enter_context(proxy_class(tmp_path / "proxy", server.port, changes, root))

        yield start
