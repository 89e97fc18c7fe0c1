"""/v1/responses/{id}/timeline: the course of a response, and its description."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct

from outlive.core.requests.checks import Given, note
from outlive.http.request import Reply, Request, json_reply


async def show(request: Request) -> Reply:
    return json_reply(await request.engine.show_timeline(request.owner, request.params["id"]))


class TimelineEntry(Struct):
    """One milestone of a response; a tool call also has an end."""

    type: Literal["queued", "start", "takeover", "first_token", "tool_call", "continuation", "cancel", "end"]
    at: Annotated[float, note("Unix time, in seconds.")]
    sequence_number: Annotated[int | None, note("The event; none for what a node does.")]
    node: Given[Annotated[str, note("The node that took the response.")]] = UNSET
    item_id: Given[str | None] = UNSET
    item_type: Given[str] = UNSET
    name: Given[str | None] = UNSET
    ended_at: Given[float | None] = UNSET
    status: Given[str | None] = UNSET


class Timeline(Struct):
    """The course of a response: its milestones, in order, and the times of its commits."""

    object: Literal["response.timeline"]
    response_id: str
    status: str
    attempts: int
    created_at: float
    first_token_at: float | None
    ended_at: float | None
    events: Annotated[int, note("How many it has so far.")]
    entries: list[TimelineEntry]
    flushes: Annotated[
        list[tuple[int, float]], note("First event and time of each commit; of very many, some are left out.")
    ]
