"""Finding things: single responses and conversations, and pages of them."""

from __future__ import annotations

from typing import Protocol

import msgspec

from outlive.core.events import Json


class Record(msgspec.Struct, frozen=True):
    """A stored response, as far as a reader needs it."""

    response_id: str
    status: str
    created_at: float
    snapshot: bytes | None  # the final object; None while it runs


class Page(msgspec.Struct, frozen=True):
    """One page of a list, in the order asked for."""

    data: list[Json]
    has_more: bool


class Paging(msgspec.Struct, frozen=True):
    after: str | None = None
    limit: int = 20
    order: str = "desc"


class Catalog(Protocol):
    """Every method answers for one owner alone: what belongs to another is not there (NotFound)."""

    async def response(self, owner: str, response_id: str) -> Record: ...

    async def status(self, owner: str, response_id: str) -> str | None:
        """How far a response is; None when there is no such."""
        ...

    async def responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None
    ) -> tuple[list[Record], bool]: ...

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        """The places in the queue (1: the next to be taken) of those among these that wait for a worker."""
        ...

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page: ...

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        """The digest and the target that an Idempotency-Key was first used for."""
        ...

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        """Responses made from this very body whose creating connection has not had its answer, newest first."""
        ...

    async def conversation(self, owner: str, conversation_id: str) -> Json: ...

    async def conversations(self, owner: str, paging: Paging) -> Page: ...

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page: ...

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Json: ...

    async def stored_items(self, owner: str, item_ids: list[str]) -> dict[str, Json]:
        """Items by their ids alone, out of whatever response or conversation; ids of none are left out."""
        ...
