"""The programs of `make clients` for the clients that every contributor has: each of their checks is a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clients.harness import open_harness
from clients.python import openai_agents, openai_lasting
from clients.python.checks import Check, Client, Target

CLIENTS: tuple[Client, ...] = (openai_lasting.client, openai_agents.client)

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """By what the model's server speaks."""
    with open_harness(tmp_path_factory.mktemp("clients"), nested=request.param) as harness:
        yield Target(harness.server.base_url, harness.control.url)
        assert "Traceback" not in harness.server.log, harness.server.log


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{client.name}, {check.feature}: {check.run.__name__}")
        for client in CLIENTS
        for check in client.checks
    ],
)
def test_a_client_passes_its_check_unchanged(check: Check, target: Target, loop: asyncio.Runner) -> None:
    check.perform(target, loop)
