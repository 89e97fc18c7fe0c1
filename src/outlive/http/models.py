"""/v1/models: what the upstreams offer, all together."""

from __future__ import annotations

import asyncio

from outlive.core.errors import NotFound
from outlive.core.events import Json
from outlive.http.request import Call, Reply, json_reply


async def list_all(call: Call) -> Reply:
    return json_reply({"object": "list", "data": await _models(call)})


async def retrieve(call: Call) -> Reply:
    wanted = call.params["model"]
    for model in await _models(call):
        if model["id"] == wanted:
            return json_reply(model)
    raise NotFound(f"The model '{wanted}' does not exist.", param="model", code="model_not_found")


async def _models(call: Call) -> list[Json]:
    """With several upstreams each model is listed as `NAME/model`, which is how it is asked for; an agent is one."""
    backends = list(call.engine.backends.values())
    lists = await asyncio.gather(*(backend.models() for backend in backends))
    several = sum(not backend.stepwise for backend in backends) > 1
    return [
        {**model, "id": f"{backend.name}/{model['id']}"} if several and not backend.stepwise else model
        for backend, models in zip(backends, lists, strict=True)
        for model in models
    ]
