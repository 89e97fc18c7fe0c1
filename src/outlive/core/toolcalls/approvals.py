"""Answers of people who were asked whether a call may be made."""

from __future__ import annotations

from collections.abc import Sequence

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json

UNKNOWN = "There is no approval request '{}' in what this turn continues."


def find_approved(past: Sequence[Json], given: Sequence[Json], output: Sequence[Json]) -> list[Json]:
    """The requests that a turn's input approves, and that no call was made for yet, in this turn or before.

    A client may well send an answer twice, or all that was ever said with each request.

    Raises InvalidRequest for an answer to what nobody has asked.
    """
    before = [*past, *given]
    requests = {item["id"]: item for item in before if item.get("type") == "mcp_approval_request"}
    made = {item.get("approval_request_id") for item in (*before, *output) if item.get("type") == "mcp_call"}
    answers = {item["approval_request_id"]: item for item in given if item.get("type") == "mcp_approval_response"}
    for request_id in answers.keys() - made - requests.keys():
        raise InvalidRequest(UNKNOWN.format(request_id), param="input")
    return [
        item
        for request_id, item in requests.items()
        if request_id not in made and answers.get(request_id, {}).get("approve") is True
    ]
