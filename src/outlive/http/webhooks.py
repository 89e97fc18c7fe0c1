"""/v1/webhook_endpoints, /v1/webhook_event_types and /v1/webhook_deliveries."""

from typing import Any

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.webhooks import EVENT_TYPES
from outlive.engine.webhooks import Webhooks
from outlive.http.openapi import CreateEndpointBody, RotateSecretBody, TestEndpointBody, UpdateEndpointBody
from outlive.http.request import Reply, Request, json_reply, list_reply, read_paging


def _find(request: Request) -> Webhooks:
    return request.engine.webhooks


async def _read_endpoint(request: Request, shape: Any, *required: str) -> Json:
    fields = await request.fields(shape, *required)
    if fields.get("event_types") == []:
        raise InvalidRequest("event_types must not be empty.", param="event_types")
    return fields


async def create(request: Request) -> Reply:
    fields = await _read_endpoint(request, CreateEndpointBody, "name", "url", "event_types")
    return json_reply(await _find(request).create(request.owner, fields))


async def update(request: Request) -> Reply:
    fields = await _read_endpoint(request, UpdateEndpointBody)
    return json_reply(await _find(request).update(request.owner, request.params["id"], fields))


async def rotate_secret(request: Request) -> Reply:
    keep = (await request.fields(RotateSecretBody)).get("keep_old_secret_active_for_24_hours", False)
    return json_reply(await _find(request).rotate(request.owner, request.params["id"], keep))


async def test(request: Request) -> Reply:
    """Send an example of an event, and answer with the status that came back."""
    endpoint_id = request.params["id"]
    event_type = (await request.fields(TestEndpointBody, "event_type"))["event_type"]
    status = await _find(request).test(request.owner, endpoint_id, event_type)
    tested = {"object": "webhook_endpoint.test", "webhook_endpoint_id": endpoint_id, "event_type": event_type}
    return json_reply(tested | {"status_code": status, "success": True})


async def list_event_types(request: Request) -> Reply:
    return json_reply({"object": "list", "data": EVENT_TYPES})


async def list_deliveries(request: Request) -> Reply:
    endpoint_id = dict(request.query).get("webhook_endpoint_id", "")
    return list_reply(await _find(request).list_deliveries(request.owner, endpoint_id, read_paging(request)))
