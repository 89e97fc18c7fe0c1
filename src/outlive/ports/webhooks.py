"""Webhooks: endpoints and deliveries as they are stored, and the sender that reaches receivers."""

from typing import NamedTuple, Protocol

import msgspec

from outlive.core.events import Json


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
