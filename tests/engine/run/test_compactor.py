"""The compactor: gets a summary from a model that may break, and seals it so that it opens for its owner alone."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from secrets import token_hex
from typing import Any

import pytest

from outlive.core.context.compaction import SUMMARY_TOKENS, Compacted
from outlive.core.context.window import estimate_item
from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.engine.run.compactor import HALVINGS, NO_SUMMARY, RETRIES, Compactor
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, ScriptedBackend, answer, finish_chunk, reasoning_chunk
from tests.engine.harness import FixedClock, text_of
from tests.support.scripting import CountingIds

TOO_LONG = UpstreamFault("It is too long.", status=400, retryable=False, too_long=True)
BROKEN = UpstreamFault("It broke.")


def message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def make(secret: bytes = b"secret") -> Compactor:
    return Compactor(SecretSeal([secret]), CountingIds(), FixedClock())


def seal(compacted: Compacted) -> Json:
    """Make an item of ann's."""
    return asyncio.run(make().make("ann", compacted))


def summarise(
    *scripts: Script, items: list[Json] | None = None, **fields: Any
) -> tuple[str, Json | None, ScriptedBackend]:
    backend = ScriptedBackend("m", scripts)
    request = CreateResponse(model="m", input=[], **fields)
    summarised = items if items is not None else [message("user", "one"), message("assistant", "1")]
    return *asyncio.run(make().summarise(backend, "m", request, summarised)), backend


# -- the summary


def test_the_model_gets_the_items_and_is_asked_for_a_summary() -> None:
    summary, usage, backend = summarise([answer("All ", "of it.")], instructions="Be kind.")
    assert summary == "All of it."
    assert usage is not None and usage["output_tokens"] == 2
    (call,) = backend.calls
    assert [text_of(item) for item in call.items][:2] == ["one", "1"]
    assert "summary" in text_of(call.items[-1])
    assert (call.request.instructions, call.request.max_output_tokens) == ("Be kind.", SUMMARY_TOKENS)


def test_a_summary_leaves_out_reasoning_and_may_be_cut_short() -> None:
    script: Script = [reasoning_chunk("hmm"), "As far as", finish_chunk("length")]
    assert summarise(script)[0] == "As far as"


def test_a_model_that_breaks_is_asked_again() -> None:
    summary, _, backend = summarise([BROKEN], ["Half", BROKEN], [answer("Whole.")])
    assert (summary, len(backend.calls)) == ("Whole.", 3)


@pytest.mark.parametrize(
    ("script", "asked"), [([BROKEN], RETRIES + 1), ([TOO_LONG], 1), ([finish_chunk()], RETRIES + 1)]
)
def test_a_model_that_gives_no_summary_raises_its_fault(script: Script, asked: int) -> None:
    backend = ScriptedBackend("m", [script])
    with pytest.raises(UpstreamFault) as caught:
        asyncio.run(make().summarise(backend, "m", CreateResponse(model="m", input=[]), [message("user", "one")]))
    assert len(backend.calls) == asked
    assert caught.value.message == (script[0].message if isinstance(script[0], UpstreamFault) else NO_SUMMARY)


def test_a_context_too_long_to_be_summarised_loses_its_oldest_part() -> None:
    items = [message("user" if n % 2 == 0 else "assistant", f"{n} " + "x" * 100) for n in range(16)]
    summary, _, backend = summarise([TOO_LONG], [TOO_LONG], [answer("The end of it.")], items=items)
    assert summary == "The end of it."
    lengths = [len(call.items) - 1 for call in backend.calls]
    assert lengths[0] == 16
    assert lengths[0] > lengths[1] > lengths[2] > 0
    assert text_of(backend.calls[2].items[-2]).startswith("15 ")
    # Some servers count the answer that may come.
    assert [call.request.max_output_tokens for call in backend.calls] == [4000, 2000, 1000]


def test_a_small_window_limits_the_items_and_the_length_of_the_summary() -> None:
    backend = ScriptedBackend("m", [[answer("The end of it.")]])
    backend.context_window = 2000
    items = [message("user" if n % 2 == 0 else "assistant", f"{n} " + "x" * 400) for n in range(40)]
    asyncio.run(make().summarise(backend, "m", CreateResponse(model="m", input=[]), items))
    (call,) = backend.calls
    assert call.request.max_output_tokens == 500
    assert sum(map(estimate_item, call.items[:-1])) <= 1500
    assert text_of(call.items[-2]).startswith("39 ")


def test_a_context_is_halved_a_limited_number_of_times() -> None:
    backend = ScriptedBackend("m", [[TOO_LONG]])
    items = [message("user" if n % 2 == 0 else "assistant", "x" * 100) for n in range(500)]
    with pytest.raises(UpstreamFault):
        asyncio.run(make().summarise(backend, "m", CreateResponse(model="m", input=[]), items))
    assert len(backend.calls) == HALVINGS + 1


# -- the item


def test_an_item_opens_for_its_owner_on_every_server_with_the_secret() -> None:
    item = seal(Compacted("The canary sings.", after=[message("user", "next")]))
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    assert "canary" not in item["encrypted_content"]
    opened = asyncio.run(make().open("ann", [message("user", "gone"), item]))
    assert "The canary sings." in text_of(opened[0])
    assert text_of(opened[1]) == "next"
    asyncio.run(make().check("ann", [item]))


def test_an_item_does_not_open_for_another_owner_or_with_another_secret() -> None:
    item = seal(Compacted("The canary sings."))
    before = [message("user", "mine")]
    for compactor, owner in ((make(), "bob"), (make(b"another secret"), "ann")):
        assert asyncio.run(compactor.open(owner, [*before, item])) == before
        with pytest.raises(InvalidRequest) as caught:
            asyncio.run(compactor.check(owner, [*before, item]))
        assert caught.value.param == "input[1].encrypted_content"


def test_compaction_items_of_other_servers_stay_as_they_are() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAAB"}
    asyncio.run(make().check("ann", [foreign]))
    assert asyncio.run(make().open("ann", [foreign])) == [foreign]
    assert make().replace_ours([foreign]) == [foreign]


def test_our_items_are_replaced_by_messages_for_a_check() -> None:
    item = seal(Compacted("s"))
    assert [each["type"] for each in make().replace_ours([message("user", "one"), item])] == ["message", "message"]


def test_a_check_of_many_items_inflates_none_of_them() -> None:
    item = seal(Compacted("s", after=[message("user", "x" * 4_000_000)]))
    tracemalloc.start()
    asyncio.run(make().check("ann", [item] * 50))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_long_item_is_opened_beside_the_loop() -> None:
    item = seal(Compacted("s", after=[message("user", token_hex(20_000))]))
    opened_in: list[str] = []

    class WatchedSeal(SecretSeal):
        def open(self, sealed: bytes, purpose: str) -> bytes:
            opened_in.append(threading.current_thread().name)
            return super().open(sealed, purpose)

    compactor = Compactor(WatchedSeal([b"secret"]), CountingIds(), FixedClock())
    asyncio.run(compactor.check("ann", [item]))
    assert len(asyncio.run(compactor.open("ann", [item]))) == 2
    assert len(opened_in) == 2
    assert threading.main_thread().name not in opened_in
