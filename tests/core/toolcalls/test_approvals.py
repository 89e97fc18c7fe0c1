"""Which calls a turn's answers allow."""

from __future__ import annotations

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.toolcalls.approvals import find_approved

REQUEST: Json = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "pay"}
MADE: Json = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1"}


def answer(approve: object, request_id: str = "mcpr_1") -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}


@pytest.mark.parametrize(("approve", "found"), [(True, [REQUEST]), (False, []), ("yes", [])])
def test_only_a_clear_yes_is_one(approve: object, found: list[Json]) -> None:
    assert find_approved([REQUEST], [answer(approve)], []) == found


def test_a_request_may_come_with_its_answer() -> None:
    assert find_approved([], [REQUEST, answer(True)], []) == [REQUEST]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_call_that_was_made_is_not_made_again_wherever_it_stands(where: int) -> None:
    past, given, output = [REQUEST], [answer(True)], list[Json]()
    (past, given, output)[where].append(MADE)
    assert find_approved(past, given, output) == []


def test_an_answer_of_a_turn_before_counts_for_that_turn_alone() -> None:
    assert find_approved([REQUEST, answer(True)], [], []) == []


def test_an_answer_to_what_nobody_asked_is_an_error_unless_its_call_was_made() -> None:
    with pytest.raises(InvalidRequest, match="mcpr_2"):
        find_approved([REQUEST], [answer(False, "mcpr_2")], [])
    assert find_approved([MADE], [answer(True)], []) == []
