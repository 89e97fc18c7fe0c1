"""Bodies of requests about conversations and chats, and the parameters in addresses and headers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, field

from outlive.core.requests.checks import Given, note
from outlive.core.requests.create import ModelName
from outlive.core.requests.items import KeptItem
from outlive.core.requests.options import Metadata
from outlive.http.conversations import MAX_ITEMS
from outlive.http.request import MAX_PAGE
from outlive.http.responses import MAX_NUMBER, MAX_WAIT_SECONDS, STATUSES

KeptItems = Annotated[list[KeptItem], Meta(max_length=MAX_ITEMS)]


class CreateConversationBody(Struct):
    """A conversation to be made."""

    items: Given[KeptItems] = UNSET
    metadata: Given[Metadata] = UNSET


class UpdateConversationBody(Struct):
    """The metadata that replaces a conversation's."""

    metadata: Metadata | None


class CreateItemsBody(Struct):
    """Items to be added to a conversation."""

    items: KeptItems


class ChatBody(Struct):
    """A Chat Completions request, which is passed on as it is."""

    model: ModelName
    messages: list[dict[str, Any]]
    stream: Given[bool] = UNSET


# -- parameters


class Repeatable(Struct):
    """The header under which a request may be repeated."""

    key: Given[Annotated[str, note("The same key and body get the same answer, and are done once.")]] = field(
        name="Idempotency-Key", default=UNSET
    )


class PageQuery(Struct):
    """A part of a list."""

    after: Given[Annotated[str, note("The id after which to begin.")]] = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "desc"


class ResponsesQuery(PageQuery):
    """Responses of some statuses, or of one conversation."""

    status: Given[list[Annotated[str, Meta(extra_json_schema={"enum": list(STATUSES)})]]] = UNSET
    conversation: Given[str] = UNSET


class RetrieveQuery(Struct):
    """A response as an object or as a stream."""

    stream: Annotated[bool, note("Its events, from the first, and then as they come.")] = False
    starting_after: Given[Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="With `stream`.")]] = UNSET
    wait: Given[Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for its end.")]] = UNSET
