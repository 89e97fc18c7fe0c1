"""A live server on the matrix's scripted model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.python.checks import Place
from clients.world import open_world


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_world(tmp_path_factory.mktemp("clients")) as world:
        yield Place(world.server.base_url, world.desk.url)
        assert "Traceback" not in world.server.log, world.server.log
