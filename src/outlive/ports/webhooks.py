"""Webhooks: endpoints and deliveries as they are stored, and the sender that reaches receivers."""

from typing import Any, NamedTuple, Protocol

import msgspec

from outlive.core.events import Json
from outlive.ports.database import Stored


class WebhookEndpoint(msgspec.Struct, frozen=True):
    """An address that gets the events of an owner's responses."""

    id: str
    owner: str
    name: str
    url: str
    event_types: list[str]
    created_at: float
    updated_at: float
    hint: str  # the end of its secret
    sealed: bytes  # its secrets
    disabled_at: float | None = None  # when it answered that it is gone


class Delivery(msgspec.Struct, frozen=True):
    """One event for one endpoint."""

    id: str
    endpoint: str
    response_id: str
    event_type: str
    created_at: float
    give_up_at: float
    attempts: int
    due_at: float | None  # of the next attempt; None: there is none
    delivered_at: float | None
    log: list[Json]  # the attempts that ended


class StoredWebhooks(Stored):
    """Stores endpoints and deliveries; each method is one statement. Deliveries are written by `RunLedger.close`.
    False: there is no such endpoint. Lists are newest first."""

    async def add(self, endpoint: WebhookEndpoint, most: int) -> bool:
        """Add an endpoint, unless its owner has `most` of them."""
        return bool(await self._database.change("add_webhook", *_to_row(endpoint), most))

    async def save(self, endpoint: WebhookEndpoint) -> bool:
        return bool(await self._database.change("save_webhook", *_to_row(endpoint)))

    async def find(self, owner: str, endpoint_id: str) -> WebhookEndpoint | None:
        found = _to_endpoints(await self._database.fetch("find_webhook", endpoint_id, owner))
        return found[0] if found else None

    async def list_endpoints(self, owner: str, after: str, limit: int) -> list[WebhookEndpoint]:
        return _to_endpoints(await self._database.fetch("list_webhooks", owner, after, limit))

    async def remove(self, owner: str, endpoint_id: str) -> bool:
        """Remove an endpoint and its deliveries."""
        removed = await self._database.change("remove_webhook", endpoint_id, owner)
        while removed and await self._database.change("drop_deliveries_to", owner, endpoint_id):
            pass
        return bool(removed)

    async def disable(self, endpoint_id: str, at: float) -> None:
        """Send an endpoint nothing any more; its deliveries stay until it is saved again, or they are erased."""
        await self._database.change("disable_webhook", endpoint_id, at)

    async def has_any(self) -> bool:
        return bool(await self._database.fetch("has_webhooks"))

    async def find_due(self, at: float) -> list[WebhookEndpoint]:
        """Find the endpoints for which an attempt is due."""
        return _to_endpoints(await self._database.fetch("find_due_webhooks", at))

    async def claim(self, endpoint_id: str, worker: str, at: float, limit: int) -> list[Delivery]:
        """Take due deliveries that no living worker is sending. Of one response the earlier event goes first."""
        return _to_deliveries(await self._database.change("claim_deliveries", endpoint_id, worker, at, limit))

    async def release(self, worker: str) -> None:
        await self._database.change("release_deliveries", worker)

    async def record(self, delivery_id: str, attempt: Json, due_at: float | None, delivered_at: float | None) -> None:
        """Record the end of an attempt, and when the next is due."""
        await self._database.change("record_attempt", delivery_id, due_at, delivered_at, _encode(attempt))

    async def list_deliveries(self, owner: str, endpoint_id: str, after: str, limit: int) -> list[Delivery]:
        """List deliveries; with an empty `endpoint_id` those to all of an owner's endpoints."""
        return _to_deliveries(await self._database.fetch("list_deliveries", owner, endpoint_id, after, limit))

    async def has_delivery(self, owner: str, delivery_id: str) -> bool:
        return bool(await self._database.fetch("find_delivery", delivery_id, owner))

    async def redeliver(self, owner: str, delivery_id: str, at: float, give_up_at: float) -> Delivery | None:
        """Make a delivery due again, whatever became of it."""
        found = _to_deliveries(await self._database.change("redeliver", delivery_id, owner, at, give_up_at))
        return found[0] if found else None


def _encode(value: Json | list[str]) -> str:
    return msgspec.json.encode(value).decode()


def _to_row(endpoint: WebhookEndpoint) -> tuple[Any, ...]:
    row = msgspec.structs.asdict(endpoint)
    return tuple((row | {"event_types": _encode(endpoint.event_types)}).values())


def _to_endpoints(rows: list[Any]) -> list[WebhookEndpoint]:
    return [WebhookEndpoint(*_decode(row, 4)) for row in rows]


def _to_deliveries(rows: list[Any]) -> list[Delivery]:
    return [Delivery(*_decode(row, 9)) for row in rows]


def _decode(row: Any, place: int) -> list[Any]:
    """Return the values of a row in which one is JSON."""
    return [*row[:place], msgspec.json.decode(row[place]), *row[place + 1 :]]


class Answer(NamedTuple):
    """A receiver's answer to one attempt."""

    status: int | None  # None: there was none
    reason: str  # in a few words; nothing of what the receiver wrote
    retry_after: float | None = None

    @property
    def is_ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Sender(Protocol):
    """Sends events to receivers."""

    def check(self, url: str) -> None:
        """Refuse an address that this server may not be sent to. Raises InvalidRequest."""

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        """Send a POST and return the answer, or why there was none. Redirects are not followed."""
