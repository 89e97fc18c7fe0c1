"""The programs of `make clients` for the clients that every contributor has: each of their checks is a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clients.python import openai_agents, openai_lasting
from clients.python.checks import Check, Client, Place
from clients.world import open_world

CLIENTS: tuple[Client, ...] = (openai_lasting.client, openai_agents.client)

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """By what the model's server speaks."""
    with open_world(tmp_path_factory.mktemp("clients"), nested=request.param) as world:
        yield Place(world.server.base_url, world.desk.url)
        assert "Traceback" not in world.server.log, world.server.log


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
def test_a_client_works_unchanged(check: Check, place: Place, loop: asyncio.Runner) -> None:
    check.perform(place, loop)
