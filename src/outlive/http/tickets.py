"""/v1/responses/{id}/tickets and /v1/conversations/{id}/tickets, and the check of what a ticket opens."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct

from outlive.core.errors import Forbidden, InvalidRequest, NotFound
from outlive.core.requests.checks import Given, note
from outlive.http.request import Reply, Request, json_reply
from outlive.ports.storage import Ticket

MAX_SECONDS = 7 * 86_400


class CreateTicketBody(Struct):
    expires_in: Given[Annotated[int, Meta(ge=1, le=MAX_SECONDS), note("Seconds; by default as the settings say.")]] = (
        UNSET
    )


class CreatedTicket(Struct):
    """Read-only access to one response or conversation. The ticket itself is shown only here."""

    id: str
    object: Literal["ticket"]
    target: Annotated[str, note("The id of what it opens.")]
    created_at: Annotated[int, note("Unix time, in seconds.")]
    expires_at: Annotated[int, note("Unix time, in seconds.")]
    ticket: Annotated[str, note("For the query of an address: `?ticket=`.")]


class RevokedTicket(Struct):
    id: str
    object: Literal["ticket.deleted"]
    deleted: bool


async def create(request: Request) -> Reply:
    """Create a ticket for the response or conversation of the path."""
    seconds = (await request.object()).get("expires_in")
    if seconds is not None and (type(seconds) is not int or not 1 <= seconds <= MAX_SECONDS):
        raise InvalidRequest(
            f"expires_in must be a whole number of seconds from 1 to {MAX_SECONDS}.", param="expires_in"
        )
    of_response = request.scope["path"].startswith("/v1/responses/")
    return json_reply(await request.engine.create_ticket(request.owner, request.params["id"], of_response, seconds))


async def revoke(request: Request) -> Reply:
    """Revoke a ticket."""
    ticket_id = request.params["ticket_id"]
    await request.engine.tickets.revoke(request.owner, request.params["id"], ticket_id)
    return json_reply({"id": ticket_id, "object": "ticket.deleted", "deleted": True})


async def admit(request: Request, text: str) -> Ticket:
    """Return the ticket of a request. Raises Unauthenticated, or Forbidden for anything but a GET."""
    if request.scope["type"] != "http" or request.scope["method"] not in ("GET", "HEAD"):
        raise Forbidden("A ticket opens GET requests only.", code="ticket_read_only")
    ticket = await request.engine.tickets.find(text)
    # An address with a ticket in it is no place to find the answer again.
    request.extra_headers |= {"cache-control": "no-store", "referrer-policy": "no-referrer"}
    return ticket


async def check(request: Request, ticket: Ticket, path: str | None) -> None:
    """Refuse a request for anything but what its ticket is for. Raises NotFound.

    `path` is that of its route; None: no ticket opens it.
    """
    if path == "/v1/responses/{id}":
        opened = await request.engine.tickets.opens_response(ticket, request.params["id"])
    else:
        named = [value for name, value in request.query() if name == "conversation"]
        opened = path is not None and [ticket.target] == (named if path == "/v1/responses" else [request.params["id"]])
    if not opened:
        raise NotFound("There is no such thing, or your ticket is for another one.")
