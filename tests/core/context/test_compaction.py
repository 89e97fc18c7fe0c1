"""Compaction: an item is replaced by its content again, and nothing that is needed is lost."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.context import compaction
from outlive.core.context.compaction import Compacted, open_context, pack, split, split_all, split_beside, unpack
from outlive.core.errors import BrokenSeal, UpstreamFault
from outlive.core.events import Json, read_frame, split_frames
from outlive.core.requests.create import CreateResponse
from tests.core.journals import assert_official_event, frames_of, opening
from tests.support import grammar


def say(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "42"}


def item(compacted: Compacted) -> Json:
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": pack(compacted, lambda plain: plain[::-1])}


def read(packed: Json) -> Compacted | None:
    try:
        return unpack(packed, lambda sealed: sealed[::-1])
    except BrokenSeal:
        return None


def words(items: list[Json]) -> list[str]:
    return [part["text"] for one in items for part in one.get("content", ()) if "text" in part]


TALK = [say("user", "one"), say("assistant", "1"), say("user", "two"), say("assistant", "2")]


# -- packing


@given(st.text(max_size=50), st.booleans())
def test_packed_content_can_be_unpacked(summary: str, beside: bool) -> None:
    compacted = Compacted(summary, [say("user", summary)], [call("a")], beside)
    assert read(item(compacted)) == compacted


@pytest.mark.parametrize("content", ["outlive.1.", "outlive.1.???", "outlive.1.é", "outlive.1.YWJj=="])
def test_malformed_content_is_a_broken_seal(content: str) -> None:
    def refuse(sealed: bytes) -> bytes:
        raise BrokenSeal

    with pytest.raises(BrokenSeal):
        unpack({"encrypted_content": content}, refuse)


def test_content_over_the_limit_is_neither_packed_nor_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Compacted("s" * 1000)
    packed = item(long)
    monkeypatch.setattr(compaction, "MAX_CONTENT", 1000)
    assert read(packed) is None
    with pytest.raises(UpstreamFault, match="too long"):
        item(long)


def test_own_items_are_known_by_their_prefix() -> None:
    assert compaction.is_own(item(Compacted("s")))
    assert not compaction.is_own({"type": "compaction", "encrypted_content": "gAAAAAB"})
    assert not compaction.is_own({"type": "reasoning", "encrypted_content": "outlive.1.x"})


# -- unpacking


def test_an_item_replaces_everything_before_it() -> None:
    compacted = Compacted("SUMMARY", [say("user", "kept")], [say("user", "asked")])
    opened = open_context([*TALK, item(compacted), say("assistant", "answered"), say("user", "next")], read)
    assert words(opened) == ["kept", words(opened)[1], "asked", "answered", "next"]
    assert "SUMMARY" in words(opened)[1]


def test_an_item_of_the_endpoint_keeps_the_users_messages() -> None:
    opened = open_context([*TALK, item(Compacted("SUMMARY", beside=True)), say("user", "next")], read)
    assert words(opened)[:2] == ["one", "two"]
    assert "SUMMARY" in words(opened)[2]
    assert words(opened)[3:] == ["next"]


def test_only_the_newest_item_is_unpacked() -> None:
    first, second = item(Compacted("FIRST")), item(Compacted("SECOND"))
    opened = open_context([say("user", "a"), first, say("user", "b"), second, say("user", "c")], read)
    assert len(opened) == 2
    assert "SECOND" in words(opened)[0]
    assert words(opened)[1] == "c"


def test_an_unreadable_item_is_left_out_and_the_one_before_it_is_unpacked() -> None:
    broken = {"type": "compaction", "encrypted_content": "outlive.1.???"}
    assert open_context([*TALK, broken], read) == TALK
    opened = open_context([*TALK, item(Compacted("FIRST")), say("user", "b"), broken, say("user", "c")], read)
    assert "FIRST" in words(opened)[0]
    assert words(opened)[1:] == ["b", "c"]


def test_other_servers_items_stay() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAAB"}
    assert open_context([*TALK, foreign], read) == [*TALK, foreign]


# -- splitting


def test_items_to_be_answered_stay_unchanged() -> None:
    parts = split([say("system", "rules"), *TALK, say("user", "three")], 1000)
    assert parts is not None
    summarised, compacted = parts
    assert summarised == [say("system", "rules"), *TALK]
    assert compacted.before == [say("system", "rules"), say("user", "one"), say("user", "two")]
    assert compacted.after == [say("user", "three")]


def test_a_call_stays_with_the_output_that_is_to_be_answered() -> None:
    parts = split([*TALK, call("a"), call("b"), output("a"), output("b")], 1000)
    assert parts is not None
    assert parts[1].after == [call("a"), call("b"), output("a"), output("b")]


def test_the_latest_user_messages_stay_as_far_as_there_is_room() -> None:
    items = [
        say("user", "x" * 400),
        say("assistant", "1"),
        say("user", "y" * 40),
        say("assistant", "2"),
        say("user", "z"),
    ]
    parts = split(items, 50)
    assert parts is not None
    assert words(parts[1].before) == ["y" * 40]


@pytest.mark.parametrize("items", [[], [say("user", "one")], [say("user", "one"), say("user", "two")]])
def test_a_context_without_model_output_is_not_summarised(items: list[Json]) -> None:
    assert split(items, 1000) is None


def test_right_after_a_compaction_there_is_nothing_to_summarise() -> None:
    compacted = Compacted("SUMMARY", [say("user", "kept")], [say("user", "asked")])
    opened = open_context([*TALK, item(compacted)], read)
    assert split(opened, 1000) is None
    again = split([*opened, say("assistant", "answered"), say("user", "next")], 1000)
    assert again is not None
    # The first summary is summarised again, and is no message of the user.
    assert "SUMMARY" in words(again[0])[1]
    assert words(again[1].before) == ["kept", "asked"]


def test_everything_but_waiting_calls_is_summarised_without_an_answer_due() -> None:
    summarised, compacted = split_all([*TALK, call("a"), call("b"), output("a")], 1000)
    assert summarised == [*TALK, call("a"), output("a")]
    assert compacted.after == [call("b")]
    assert words(compacted.before) == ["one", "two"]


def test_the_endpoint_returns_the_users_messages_and_packs_the_rest() -> None:
    opened = open_context([say("developer", "rules"), *TALK, item(Compacted("SUMMARY", beside=True)), *TALK], read)
    summarised, said, compacted = split_beside([say("developer", "rules"), *opened])
    assert words(said) == ["one", "two", "one", "two"]
    assert any("SUMMARY" in word for word in words(summarised))
    assert compacted.before == [say("developer", "rules")]
    assert compacted.beside


# -- the summary request, and events


def test_the_summary_request_equals_the_answers_without_tools_and_format() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be kind.",
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": "required",
        "text": {"format": {"type": "json_object"}},
        "max_output_tokens": 16,
        "top_logprobs": 3,
        "conversation": "conv_1",
        "context_management": 1000,
        "extra": {"top_k": 3},
    }
    asked = compaction.ask_summary(CreateResponse(model="m", input=TALK, **fields), TALK)
    assert (asked.instructions, asked.extra, len(asked.tools)) == ("Be kind.", {"top_k": 3}, 1)
    assert (asked.tool_choice, asked.text, asked.top_logprobs, asked.store) == ("none", {}, None, False)
    assert asked.max_output_tokens == compaction.SUMMARY_TOKENS
    assert (asked.conversation, asked.context_management, asked.input) == (None, None, [])
    assert compaction.ask_summary(CreateResponse(model="m", input=[]), TALK).tool_choice == "auto"


def test_a_summary_calls_no_tool_that_an_item_brings() -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "look"}]}
    assert compaction.ask_summary(CreateResponse(model="m", input=[]), [brought, *TALK]).tool_choice == "none"


def test_an_items_events_are_official() -> None:
    shown = item(Compacted("s"))
    frames = split_frames(frames_of([*opening(), *compaction.show(shown, 0)]))
    events = [read_frame(frame) for frame in frames]
    grammar.check(events, finished=False)
    for event in events:
        assert_official_event(event)
    assert [event["type"] for event in events[2:]] == [
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]
    assert events[2]["item"]["encrypted_content"] == ""
    assert events[-1]["item"] == shown


def test_many_calls_without_output_are_split_in_linear_time() -> None:
    items = [call(str(number)) for number in range(20_000)]
    started = time.thread_time()
    summarised, compacted = compaction.split_all(items, 0)
    assert time.thread_time() - started < 1.0  # 5 s and more if each is compared with all
    assert summarised == []
    assert compacted.after == items
