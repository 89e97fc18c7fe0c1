"""Stream tickets: short-lived, read-only access to one response or conversation, for pages that must not hold a key."""

import contextlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import astuple

from outlive.core.errors import NotFound, Unauthenticated
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.engine.delivery.reader import Cursor
from outlive.engine.keys import digest_of
from outlive.ports.clock import Clock
from outlive.ports.database import Statements
from outlive.ports.storage import Ticket

SECRET_BYTES = 24


@dataclass(eq=False)
class Tickets:
    """Gives out tickets, finds them, and cuts the streams of those that were revoked or have expired. A ticket is its
    id and a secret, of which only the digest is stored. Expired ones are erased by `Retention.forget_keys`."""

    _database: Statements
    _clock: Clock
    _ids: IdSource
    _seconds: float  # after which one expires that names no other time
    _streams: dict[Cursor, str] = field(default_factory=dict)  # open ones, with the ids of their tickets

    async def create(self, owner: str, target: str, seconds: float | None) -> Json:
        """Store a ticket for a response or conversation that exists, and return it."""
        now, secret = self._clock.now(), secrets.token_urlsafe(SECRET_BYTES)
        ticket = Ticket(self._ids.new("ticket"), owner, target, now + (seconds or self._seconds), digest_of(secret))
        await self._database.change("add_ticket", *astuple(ticket))
        shown = {"id": ticket.id, "object": "ticket", "target": target, "created_at": int(now)}
        return shown | {"expires_at": int(ticket.expires_at), "ticket": f"{ticket.id}.{secret}"}

    async def revoke(self, owner: str, target: str, ticket_id: str) -> None:
        """Revoke a ticket, and cut its streams on this node. Raises NotFound."""
        if not await self._database.change("remove_ticket", ticket_id, owner, target):
            raise NotFound(f"Ticket with id '{ticket_id}' not found.")
        await self.check_once()

    async def find(self, text: str) -> Ticket:
        """Return a valid ticket. Raises Unauthenticated."""
        ticket_id, _, secret = text.partition(".")
        for row in await self._database.fetch("find_ticket", ticket_id):
            ticket = Ticket(*row)
            if hmac.compare_digest(ticket.digest, digest_of(secret)) and ticket.expires_at > self._clock.now():
                return ticket
        raise Unauthenticated("The ticket is not valid: it has expired or was revoked.", code="invalid_ticket")

    async def opens_response(self, ticket: Ticket, response_id: str) -> bool:
        """Return True if the ticket is for this response, or for the conversation that it belongs to."""
        of = (response_id, ticket.owner, ticket.target)
        return ticket.target == response_id or bool(await self._database.fetch("find_in_conversation", *of))

    @contextlib.contextmanager
    def watch(self, ticket: Ticket | None, cursor: Cursor) -> Iterator[None]:
        """Stop the cursor once its ticket is not valid any more."""
        if ticket is not None:
            self._streams[cursor] = ticket.id
        try:
            yield
        finally:
            self._streams.pop(cursor, None)

    async def check_once(self) -> None:
        asked = dict(self._streams)
        ids, now = sorted(set(asked.values())), self._clock.now()
        valid = {row[0] for row in await self._database.fetch("find_valid_tickets", ids, now)} if asked else ()
        for cursor, ticket_id in asked.items():
            if ticket_id not in valid:
                cursor.stop()
