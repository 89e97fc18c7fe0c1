"""Folds from the journal: a whole response, and responses of other nodes, of which only new events are folded."""

from __future__ import annotations

import asyncio

from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import FOLD_BYTES, KEEP_SECONDS, MAX_FOLDS, RemoteFolds, replay
from outlive.engine.ephemeral import MemoryLedger
from tests.core.journals import fold_of, frames_of, opening, state_of
from tests.engine.live_responses import ADDED, CountingJournal, JournaledResponse, deltas
from tests.engine.mirror_harness import TwoNodes
from tests.engine.virtual_clock import VirtualClock, in_virtual_time, pass_time


def test_a_replay_folds_every_page() -> None:
    """Not in virtual time: large pages are folded in a thread."""

    async def body() -> None:
        journal = CountingJournal()
        response = JournaledResponse(MemoryLedger(journal), LiveResponses())
        response.start()
        await response.commit(ADDED)
        for _ in range(300):
            await response.commit(*deltas(4, "y" * 1000))
        assert len(response.bytes) > FOLD_BYTES
        fold = await replay(journal, "resp_1")
        assert state_of(fold) == state_of(fold_of(response.drafts))
        assert journal.reads > 2

    asyncio.run(body())


@in_virtual_time
async def test_a_response_of_another_node_is_shown_by_folding_only_what_is_new() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    await response.commit(ADDED, *deltas(200))
    reader = nodes.reading.reader
    fold = await reader.fold("resp_1")
    assert fold.last == len(response.drafts) - 1
    await response.commit(*deltas(5))
    reads = nodes.journal.reads
    folds = await asyncio.gather(*(reader.fold("resp_1") for _ in range(3)))
    assert all(each is fold for each in folds)
    assert fold.deltas == 205
    assert fold.last == len(response.drafts) - 1
    assert nodes.journal.reads <= reads + 6
    await response.finish()
    assert (await reader.fold("resp_1")).ended
    assert reader.remote_folds is not None
    reader.remote_folds.drop_old()
    assert len(reader.remote_folds._folds) == 0


@in_virtual_time
async def test_a_fold_is_dropped_some_time_after_it_was_last_asked_for() -> None:
    nodes = TwoNodes()
    nodes.start()
    reader = nodes.reading.reader
    await reader.fold("resp_1")
    folds = reader.remote_folds
    assert folds is not None
    for dropped in (False, True):
        await pass_time(KEEP_SECONDS * 2 / 3)
        folds.drop_old()
        assert len(folds._folds) == (0 if dropped else 1)


@in_virtual_time
async def test_of_too_many_folds_the_least_recently_asked_for_are_dropped() -> None:
    journal = CountingJournal()
    ledger, folds = MemoryLedger(journal), RemoteFolds(journal, VirtualClock())
    frames = frames_of(opening())
    for n in range(MAX_FOLDS + 1):
        ledger.admit(f"resp_{n}", frames, len(opening()))
    kept = await folds.get("resp_0")
    for n in range(1, MAX_FOLDS):
        await folds.get(f"resp_{n}")
    assert await folds.get("resp_0") is kept
    await folds.get(f"resp_{MAX_FOLDS}")
    assert len(folds._folds) == MAX_FOLDS
    assert await folds.get("resp_0") is kept
