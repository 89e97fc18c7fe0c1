"""What an agent said and did in an earlier life is passed over when it comes by it again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.toolcalls.calls import INTERRUPTED, fail
from outlive.served_agents.replay_guard import ReplayGuard


def message(text: str) -> Json:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def call(name: str, output: str | None = "out", error: Json | None = None) -> Json:
    return {"type": "mcp_call", "name": name, "arguments": "{}", "output": output, "error": error}


@given(st.text(max_size=30), st.lists(st.text(max_size=8), max_size=8))
def test_whatever_the_pieces_only_what_is_new_is_said(shown: str, pieces: list[str]) -> None:
    whole = shown + "".join(pieces)
    recall = ReplayGuard([], shown)
    cuts = [whole[n : n + 3] for n in range(0, len(whole), 3)]
    assert "".join(recall.take_text("message", piece) for piece in cuts) == whole[len(shown) :]


def test_a_finished_call_is_given_back_in_its_place() -> None:
    recall = ReplayGuard([message("Hm. "), call("add"), message("So. ")], None)
    assert recall.take_text("message", "Hm. ") == ""
    assert recall.take_call("add", "{}", idempotent=False) == call("add")
    assert recall.take_text("message", "So. And") == "And"
    assert recall.take_call("add", "{}", idempotent=False) is None


def test_an_interrupted_call_is_made_again_only_if_that_is_all_one() -> None:
    broken = call("add", None, fail(INTERRUPTED).error)
    assert ReplayGuard([broken], None).take_call("add", "{}", idempotent=False) == broken
    assert ReplayGuard([broken], None).take_call("add", "{}", idempotent=True) is None


def test_another_way_is_a_new_one_where_nothing_is_half_shown() -> None:
    recall = ReplayGuard([message("Yes."), call("add")], None)
    assert recall.take_text("message", "No.") == "No."
    assert recall.take_call("add", "{}", idempotent=False) is None


@pytest.mark.parametrize("piece", ["Nope", "Hx"])
def test_another_way_in_the_middle_of_a_text_cannot_be_gone(piece: str) -> None:
    with pytest.raises(UpstreamFault):
        ReplayGuard([], "Hello").take_text("message", piece)
