"""Fixtures: a scripted upstream, and servers behind each real proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

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


@pytest.fixture(scope="module")
def proxies(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """Starts servers behind proxies, one for each combination, and stops them after the tests of the file."""
    started: dict[str, ReverseProxy] = {}
    with ExitStack() as stack:

        def start(kind: str, *flags: str, changes: dict[str, str] | None = None, root: str = "") -> ReverseProxy:
            name = repr((kind, flags, changes, root))
            if name not in started:
                folder = tmp_path_factory.mktemp(kind)
                server = stack.enter_context(OutliveServer(folder / "server", upstream.url, *flags))
                (folder / "proxy").mkdir()
                proxy = PROXIES[kind](folder / "proxy", server.port, changes, root)
                started[name] = stack.enter_context(proxy)
            return started[name]

        yield start


@pytest.fixture
def behind(kind: str, proxies: Behind) -> Behind:
    """Gives a server with these flags behind a proxy with these changes of its configuration."""
    if not PROXIES[kind].is_installed():
        pytest.skip(f"needs {kind}: apt-get install {PROXIES[kind].package}")
    return partial(proxies, kind)
