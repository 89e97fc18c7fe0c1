"""/v1/models: the models of all upstreams."""

from __future__ import annotations

from outlive.core.errors import NotFound
from outlive.http.request import Reply, Request, json_reply


async def list_all(request: Request) -> Reply:
    """List the models."""
    return json_reply({"object": "list", "data": await request.engine.list_models()})


async def retrieve(request: Request) -> Reply:
    """Return one model."""
    wanted = request.params["model"]
    for model in await request.engine.list_models():
        if model["id"] == wanted:
            return json_reply(model)
    raise NotFound(f"The model '{wanted}' does not exist.", param="model", code="model_not_found")
