"""Output that an interrupted agent has produced is skipped when the agent produces it again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.toolcalls import INTERRUPTED, fail
from outlive.served_agents.function import ReplayGuard


def message(text: str) -> Json:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def call(name: str, output: str | None = "out", error: Json | None = None) -> Json:
    return {"type": "mcp_call", "name": name, "arguments": "{}", "output": output, "error": error}


@given(st.text(max_size=30), st.lists(st.text(max_size=8), max_size=8))
def test_only_new_text_is_returned_however_it_is_cut_into_pieces(shown: str, pieces: list[str]) -> None:
    whole = shown + "".join(pieces)
    guard = ReplayGuard([], shown)
    cuts = [whole[n : n + 3] for n in range(0, len(whole), 3)]
    assert "".join(guard.skip_text("message", piece) for piece in cuts) == whole[len(shown) :]


def test_a_finished_call_is_returned_in_its_place() -> None:
    guard = ReplayGuard([message("Hm. "), call("add"), message("So. ")], None)
    assert guard.skip_text("message", "Hm. ") == ""
    assert guard.skip_call("add", "{}", idempotent=False) == call("add")
    assert guard.skip_text("message", "So. And") == "And"
    assert guard.skip_call("add", "{}", idempotent=False) is None


def test_an_interrupted_call_is_repeated_only_if_it_is_idempotent() -> None:
    broken = call("add", None, fail(INTERRUPTED).error)
    assert ReplayGuard([broken], None).skip_call("add", "{}", idempotent=False) == broken
    assert ReplayGuard([broken], None).skip_call("add", "{}", idempotent=True) is None


def test_an_agent_that_diverges_is_followed_when_no_text_is_half_shown() -> None:
    guard = ReplayGuard([message("Yes."), call("add")], None)
    assert guard.skip_text("message", "No.") == "No."
    assert guard.skip_call("add", "{}", idempotent=False) is None


@pytest.mark.parametrize("piece", ["Nope", "Hx"])
def test_an_agent_that_diverges_in_the_middle_of_a_text_fails(piece: str) -> None:
    with pytest.raises(UpstreamFault):
        ReplayGuard([], "Hello").skip_text("message", piece)
