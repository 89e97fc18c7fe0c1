"""Helpers for the tests of agents: clients, agents, and the responses that a server has."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agents import Agent, ModelSettings, RunConfig
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from outlive.agents import DurableProvider
from tests.support.server import OutliveServer

WAIT_SECONDS = 10.0


@asynccontextmanager
async def connect(base_url: str, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="any", **({"max_retries": 0} | options)) as client:
        yield client


def make_agent(model: str, *tools: Any, settings: ModelSettings | None = None, **extra: Any) -> Agent[Any]:
    """Make an agent; `extra` becomes its extra_args."""
    settings = replace(settings or ModelSettings(extra_args=extra or None), metadata={"asked": model})
    return Agent(name="Clerk", instructions="Be brief.", model=model, tools=list(tools), model_settings=settings)


def durable(client: AsyncOpenAI, **settings: Any) -> RunConfig:
    return RunConfig(model_provider=DurableProvider(client, **settings))


def list_responses(server: OutliveServer, model: str) -> list[Response]:
    """Return every response of that model on the server, newest first."""
    with OpenAI(base_url=server.base_url, api_key="any") as client:
        listed: Any = client.get("/responses?limit=100", cast_to=object)
        return [
            client.responses.retrieve(each["id"]) for each in listed["data"] if each["metadata"].get("asked") == model
        ]


def wait_status(server: OutliveServer, model: str, status: str) -> Response:
    """Wait until the only response of that model has that status, and return it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = list_responses(server, model)
        if len(found) == 1 and found[0].status == status:
            return found[0]
        assert time.monotonic() < deadline, [(each.id, each.status) for each in found]
        time.sleep(0.02)
