"""The compactor: a summary is had from a model that may break, and sealed so that only its owner's server opens it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.context.compaction import SUMMARY_TOKENS, Compacted
from outlive.core.context.estimate import estimate_item
from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.engine.run.compactor import HALVINGS, NO_SUMMARY, RETRIES, Compactor, Summary
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, ScriptedBackend, answer, finish_chunk, reasoning_chunk
from tests.engine.harness import FixedClock, text_of
from tests.support.scripting import CountingIds

TOO_LONG = UpstreamFault("It is too long.", status=400, retryable=False, too_long=True)
BROKEN = UpstreamFault("It broke.")


def say(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def make(secret: bytes = b"secret") -> Compactor:
    return Compactor(SecretSeal([secret]), CountingIds(), FixedClock())


def summarise(
    *scripts: Script, told_to_model: list[Json] | None = None, **fields: Any
) -> tuple[Summary, ScriptedBackend]:
    backend = ScriptedBackend("m", scripts)
    request = CreateResponse(model="m", input=[], **fields)
    items = told_to_model if told_to_model is not None else [say("user", "one"), say("assistant", "1")]
    return asyncio.run(make().summarise(backend, "m", request, items)), backend


# -- the summary


def test_the_model_is_given_what_is_told_and_asked_for_a_summary() -> None:
    summary, backend = summarise([answer("All ", "of it.")], instructions="Be kind.")
    assert summary.text == "All of it."
    assert summary.usage is not None and summary.usage["output_tokens"] == 2
    (call,) = backend.calls
    assert [text_of(item) for item in call.items][:2] == ["one", "1"]
    assert "summary" in text_of(call.items[-1])
    assert (call.request.instructions, call.request.max_output_tokens) == ("Be kind.", SUMMARY_TOKENS)


def test_thoughts_are_no_part_of_a_summary_and_one_that_was_cut_short_counts() -> None:
    script: Script = [reasoning_chunk("hmm"), "As far as", finish_chunk("length")]
    assert summarise(script)[0].text == "As far as"


def test_a_model_that_breaks_is_asked_again() -> None:
    summary, backend = summarise([BROKEN], ["Half", BROKEN], [answer("Whole.")])
    assert (summary.text, len(backend.calls)) == ("Whole.", 3)


@pytest.mark.parametrize(
    ("script", "asked"), [([BROKEN], RETRIES + 1), ([TOO_LONG], 1), ([finish_chunk()], RETRIES + 1)]
)
def test_where_there_is_no_summary_to_be_had_the_fault_says_so(script: Script, asked: int) -> None:
    backend = ScriptedBackend("m", [script])
    with pytest.raises(UpstreamFault) as caught:
        asyncio.run(make().summarise(backend, "m", CreateResponse(model="m", input=[]), [say("user", "one")]))
    assert len(backend.calls) == asked
    assert caught.value.message == (script[0].message if isinstance(script[0], UpstreamFault) else NO_SUMMARY)


def test_what_is_too_long_to_be_summarised_goes_without_its_oldest_part() -> None:
    told_to_model = [say("user" if n % 2 == 0 else "assistant", f"{n} " + "x" * 100) for n in range(16)]
    summary, backend = summarise([TOO_LONG], [TOO_LONG], [answer("The end of it.")], told_to_model=told_to_model)
    assert summary.text == "The end of it."
    lengths = [len(call.items) - 1 for call in backend.calls]
    assert lengths[0] == 16
    assert lengths[0] > lengths[1] > lengths[2] > 0
    assert text_of(backend.calls[2].items[-2]).startswith("15 ")
    # Some servers count the answer that may come.
    assert [call.request.max_output_tokens for call in backend.calls] == [4000, 2000, 1000]


def test_a_small_window_gets_what_fits_and_a_summary_that_fits_beside_it() -> None:
    backend = ScriptedBackend("m", [[answer("The end of it.")]])
    backend.context_window = 2000
    told_to_model = [say("user" if n % 2 == 0 else "assistant", f"{n} " + "x" * 400) for n in range(40)]
    asyncio.run(make().summarise(backend, "m", CreateResponse(model="m", input=[]), told_to_model))
    (call,) = backend.calls
    assert call.request.max_output_tokens == 500
    assert sum(map(estimate_item, call.items[:-1])) <= 1500
    assert text_of(call.items[-2]).startswith("39 ")


def test_halving_comes_to_an_end() -> None:
    backend = ScriptedBackend("m", [[TOO_LONG]])
    told_to_model = [say("user" if n % 2 == 0 else "assistant", "x" * 100) for n in range(500)]
    with pytest.raises(UpstreamFault):
        asyncio.run(make().summarise(backend, "m", CreateResponse(model="m", input=[]), told_to_model))
    assert len(backend.calls) == HALVINGS + 1


# -- the item


def test_an_item_opens_for_its_owner_on_every_server_with_the_secret() -> None:
    item = make().make("ann", Compacted("The canary sings.", after=[say("user", "next")]))
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    assert "canary" not in item["encrypted_content"]
    opened = make().open("ann", [say("user", "gone"), item])
    assert "The canary sings." in text_of(opened[0])
    assert text_of(opened[1]) == "next"
    make().check("ann", [item])


def test_an_item_opens_for_nobody_else() -> None:
    item = make().make("ann", Compacted("The canary sings."))
    before = [say("user", "mine")]
    for compactor, owner in ((make(), "bob"), (make(b"another secret"), "ann")):
        assert compactor.open(owner, [*before, item]) == before
        with pytest.raises(InvalidRequest) as caught:
            compactor.check(owner, [*before, item])
        assert caught.value.param == "input[1].encrypted_content"


def test_others_items_are_left_alone() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAAB"}
    make().check("ann", [foreign])
    assert make().open("ann", [foreign]) == [foreign]
    assert make().stand_in([foreign]) == [foreign]


def test_a_context_without_any_concerns_nobody() -> None:
    assert not make().concerns([say("user", "one")], [])
    assert make().concerns([], [make().make("ann", Compacted("s"))])


def test_for_a_check_something_plain_stands_in_its_place() -> None:
    item = make().make("ann", Compacted("s"))
    assert [one["type"] for one in make().stand_in([say("user", "one"), item])] == ["message", "message"]
