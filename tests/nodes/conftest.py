"""What the tests of many nodes share: an upstream that follows scripts, and crews of servers on one Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.nodes.crew import Crew
from tests.support.upstream import FakeUpstream

MakeCrew = Callable[..., Crew]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture(scope="session")
def trio(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Three nodes that live as long as the tests, with an upstream that can write on in an answer."""
    crew = Crew(tmp_path_factory.mktemp("trio"), upstream.url, continuation="prefill", lease=10.0)
    for _ in range(3):
        crew.add()
    crew.start()
    yield crew
    crew.stop()


@pytest.fixture
def make_crew(tmp_path: Path, upstream: FakeUpstream) -> Iterator[MakeCrew]:
    """Makes crews of a test's own, and sees that none is left when it is over."""
    with ExitStack() as stack:

        def make(count: int, *flags: str, continuation: str | None = "prefill") -> Crew:
            crew = Crew(tmp_path, upstream.url, *flags, continuation=continuation)
            stack.callback(crew.stop)
            for _ in range(count):
                crew.add()
            return crew

        yield make
