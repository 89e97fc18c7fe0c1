"""The buffer releases text as it comes, and calls of server tools only when they are whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import AnyDraft, Delta, Draft
from outlive.core.grammar import OUTPUT_TEXT
from outlive.core.toolcalls.buffer import RequestedCall, ToolCallBuffer
from outlive.dialects.chat.translator import ChatTranslator
from outlive.dialects.open_items import GrowingText
from outlive.ports.backend import ModelCall
from outlive.testing import call_chunk, finish_chunk, reasoning_chunk, text_chunk
from tests.core.journals import REQUEST, opening
from tests.core.journals import chunks as any_chunks
from tests.support.grammar import check
from tests.support.scripting import CountingIds

OURS = {"weather"}


def sift(chunks: list[bytes], finish: str = "tool_calls") -> tuple[list[AnyDraft], list[AnyDraft | RequestedCall]]:
    """Return the drafts released during the step, and those at its end."""
    translator = ChatTranslator(ModelCall("m", REQUEST, []), CountingIds())
    sieve = ToolCallBuffer(OURS)
    shown: list[AnyDraft] = []
    for chunk in [*chunks, finish_chunk(finish)]:
        shown += sieve.feed(translator.feed(chunk))
    return shown, sieve.end(translator.end()[0])


def types(drafts: list[AnyDraft | RequestedCall]) -> list[str]:
    return ["Wanted" if isinstance(draft, RequestedCall) else draft.type.removeprefix("response.") for draft in drafts]


def test_text_is_released_at_once_and_its_end_with_what_follows() -> None:
    shown, rest = sift([text_chunk("Hello")], "stop")
    assert types([*shown]) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert types(rest) == ["output_text.done", "content_part.done", "output_item.done"]


def test_an_end_that_comes_early_is_held_until_something_follows_it() -> None:
    """Some dialects end an item before it is known that another follows."""
    text = GrowingText("message", "msg_1", 0)
    said = [*text.open(), *text.open_part(OUTPUT_TEXT), text.grow("Hi"), *text.close("completed")]
    sieve = ToolCallBuffer(OURS)
    assert types([*sieve.feed(said)])[-1] == "output_text.delta"
    assert types(sieve.end([])) == ["output_text.done", "content_part.done", "output_item.done"]
    sieve = ToolCallBuffer(OURS)
    sieve.feed(said)
    following = GrowingText("message", "msg_2", 1).open()
    assert types([*sieve.feed(following)])[-2:] == ["output_item.done", "output_item.added"]


def test_a_server_tools_call_is_held_until_the_step_ends() -> None:
    chunks = [text_chunk("Wait."), call_chunk(0, "c1", "weather", '{"city":'), call_chunk(0, None, None, '"Paris"}')]
    shown, rest = sift(chunks)
    # The end of the text is released as soon as something follows.
    assert types([*shown])[-1] == "output_item.done"
    assert rest == [RequestedCall(1, "weather", '{"city":"Paris"}', whole=True)]


def test_a_client_tools_call_is_released_as_it_grows() -> None:
    shown, rest = sift([call_chunk(0, "c1", "shell", '{"input":"ls"}')])
    assert types([*shown]) == ["output_item.added"]
    assert "Wanted" not in types(rest)


def test_calls_of_both_kinds_keep_their_order() -> None:
    chunks = [
        reasoning_chunk("Hm"),
        call_chunk(0, "c1", "shell", '{"input":"ls"}'),
        call_chunk(1, "c2", "weather", "{}"),
        call_chunk(2, "c3", "shell", '{"input":"pwd"}'),
        call_chunk(3, "c4", "weather", ""),
    ]
    shown, rest = sift(chunks)
    assert [piece.output_index for piece in rest if isinstance(piece, RequestedCall)] == [2, 4]
    assert [piece.arguments for piece in rest if isinstance(piece, RequestedCall)] == ["{}", "{}"]
    added = [
        piece.output_index if isinstance(piece, RequestedCall) else piece.fields["output_index"]
        for piece in [*shown, *rest]
        if isinstance(piece, RequestedCall) or (type(piece) is Draft and piece.type.endswith("item.added"))
    ]
    assert added == [0, 1, 2, 3, 4]


def test_a_truncated_call_is_not_whole() -> None:
    _, rest = sift([call_chunk(0, "c1", "weather", '{"city":')], "length")
    assert rest == [RequestedCall(0, "weather", '{"city":', whole=False)]


@given(any_chunks, st.sampled_from(["stop", "tool_calls", "length"]))
def test_every_draft_is_released_once(chunks: list[bytes], finish: str) -> None:
    translator = ChatTranslator(ModelCall("m", REQUEST, []), CountingIds())
    plain: list[AnyDraft] = []
    try:
        for chunk in [*chunks, finish_chunk(finish)]:
            plain += translator.feed(chunk)
        plain += translator.end()[0]
    except Exception:
        return  # the upstream broke
    shown, rest = sift(chunks, finish)
    ours = {piece.output_index for piece in rest if isinstance(piece, RequestedCall)}
    kept = [draft for draft in plain if _place(draft) not in ours]
    assert [repr(draft) for draft in [*shown, *rest] if not isinstance(draft, RequestedCall)] == [
        repr(draft) for draft in kept
    ]
    # The drafts released before the end of the step are a sound journal.
    check([_read(draft, n) for n, draft in enumerate([*opening(), *shown])], finished=False)


def _place(draft: AnyDraft) -> int:
    return int(draft.channel.output_index if isinstance(draft, Delta) else draft.fields["output_index"])


def _read(draft: AnyDraft, number: int) -> dict[str, object]:
    from outlive.core.events import read_frame

    return read_frame(draft.frame(number))
