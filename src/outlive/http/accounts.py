"""/v1/keys, /v1/audit, tickets, /v1/usage and the webhooks: who may use the server, who changed that, what was used,
and who gets events."""

from typing import Any

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.owners import split
from outlive.core.requests.checks import refuse_missing
from outlive.core.webhooks import EVENT_TYPES
from outlive.engine.keys import Keys
from outlive.engine.usage import GROUPS, read_time
from outlive.engine.webhooks import Webhooks
from outlive.http import openapi
from outlive.http.request import Reply, Request, json_reply, list_reply, read_int, read_paging
from outlive.ports.catalog import Page

_FOREVER = 1e12


def _keys(request: Request) -> Keys:
    return request.engine.keys


def _name_actor(request: Request) -> str:
    """Return the owner whose key a request came with, and the id of the key if it has one."""
    return f"{request.key.owner} ({request.key.id})" if request.key.id else request.key.owner


async def create_key(request: Request) -> Reply:
    given = await request.fields(openapi.CreateKeyBody)
    if "owner" not in given:
        refuse_missing("owner")
    role, acts_for, days = given.get("role", "user"), given.get("acts_for", False), given.get("expires_in_days")
    return json_reply(await _keys(request).create(_name_actor(request), given["owner"], role, days, acts_for))


async def list_keys(request: Request) -> Reply:
    return json_reply({"object": "list", "data": await _keys(request).find_all()})


async def revoke_key(request: Request) -> Reply:
    return json_reply(await _keys(request).revoke(_name_actor(request), request.params["id"]))


async def list_audit(request: Request) -> Reply:
    return json_reply({"object": "list", "data": await _keys(request).list_audit(read_paging(request).limit)})


async def create_ticket(request: Request) -> Reply:
    """Create a ticket for the response or conversation of the path."""
    seconds = (await request.object()).get("expires_in")
    if seconds is not None and (type(seconds) is not int or not 1 <= seconds <= openapi.MAX_TICKET_SECONDS):
        message = f"expires_in must be a whole number of seconds from 1 to {openapi.MAX_TICKET_SECONDS}."
        raise InvalidRequest(message, param="expires_in")
    of_response = request.scope["path"].startswith("/v1/responses/")
    return json_reply(await request.engine.create_ticket(request.owner, request.params["id"], of_response, seconds))


async def show_usage(request: Request) -> Reply:
    """Sum up the usage of the caller, or of all owners for an admin."""
    given = dict(request.query)
    by = [name for key, value in request.query if key == "group_by" for name in value.split(",") if name]
    for name in by:
        if name not in GROUPS:
            raise InvalidRequest(f"group_by must be some of {', '.join(GROUPS)}, not {name!r}.", param="group_by")
    owner, end_user = (None, None) if request.key.role == "admin" else split(request.owner)
    start, end = read_time(given.get("start"), "start", 0.0), read_time(given.get("end"), "end", _FOREVER)
    first, limit = read_int(given.get("after") or "0", "after"), read_int(given.get("limit", "1000"), "limit")
    if not 1 <= limit <= openapi.MAX_USAGE_ROWS:
        raise InvalidRequest(f"limit must be between 1 and {openapi.MAX_USAGE_ROWS}.", param="limit")
    if first < 0:
        raise InvalidRequest("after must be the id of a row, as the page before has it.", param="after")
    usage = request.engine.usage
    rows = await usage.report(list(dict.fromkeys(by)), start, end, owner, end_user)
    data = [{"id": str(first + n), **row} for n, row in enumerate(rows[first : first + limit], start=1)]
    return list_reply(Page(data, len(rows) > first + limit))


# -- webhooks


def _webhooks(request: Request) -> Webhooks:
    return request.engine.webhooks


async def _read_endpoint(request: Request, shape: Any, *required: str) -> Json:
    fields = await request.fields(shape, *required)
    if fields.get("event_types") == []:
        raise InvalidRequest("event_types must not be empty.", param="event_types")
    return fields


async def create_endpoint(request: Request) -> Reply:
    fields = await _read_endpoint(request, openapi.CreateEndpointBody, "name", "url", "event_types")
    return json_reply(await _webhooks(request).create(request.owner, fields))


async def update_endpoint(request: Request) -> Reply:
    fields = await _read_endpoint(request, openapi.UpdateEndpointBody)
    return json_reply(await _webhooks(request).update(request.owner, request.params["id"], fields))


async def rotate_secret(request: Request) -> Reply:
    keep = (await request.fields(openapi.RotateSecretBody)).get("keep_old_secret_active_for_24_hours", False)
    return json_reply(await _webhooks(request).rotate(request.owner, request.params["id"], keep))


async def test_endpoint(request: Request) -> Reply:
    """Send an example of an event, and answer with the status that came back."""
    endpoint_id = request.params["id"]
    event_type = (await request.fields(openapi.TestEndpointBody, "event_type"))["event_type"]
    status = await _webhooks(request).test(request.owner, endpoint_id, event_type)
    tested = {"object": "webhook_endpoint.test", "webhook_endpoint_id": endpoint_id, "event_type": event_type}
    return json_reply(tested | {"status_code": status, "success": True})


async def list_event_types(request: Request) -> Reply:
    return json_reply({"object": "list", "data": EVENT_TYPES})


async def list_deliveries(request: Request) -> Reply:
    endpoint_id = dict(request.query).get("webhook_endpoint_id", "")
    return list_reply(await _webhooks(request).list_deliveries(request.owner, endpoint_id, read_paging(request)))
