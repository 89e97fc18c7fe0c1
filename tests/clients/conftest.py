"""Fixture: a live server on the scripted model of the clients' matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.harness import open_harness
from clients.python.checks import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with open_harness(tmp_path_factory.mktemp("clients")) as harness:
        yield Target(harness.server.base_url, harness.control.url)
        assert "Traceback" not in harness.server.log, harness.server.log
