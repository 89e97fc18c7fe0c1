"""A response that runs elsewhere is shown by folding what is new; what nobody asks for is dropped."""

from __future__ import annotations

import asyncio

from tests.engine.mirror_harness import ADDED, Stage, deltas
from tests.engine.virtual_clock import pass_time, run_virtually


def test_a_response_is_shown_as_it_is_by_folding_only_what_is_new() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        await run.commit(ADDED, *deltas(200))
        reader = stage.here.reader
        fold = await reader.fold("resp_1")
        assert fold.last == len(run.drafts) - 1
        await run.commit(*deltas(5))
        reads = stage.journal.reads
        folds = await asyncio.gather(*(reader.fold("resp_1") for _ in range(3)))
        assert all(each is fold for each in folds)
        assert fold.deltas == 205
        assert fold.last == len(run.drafts) - 1
        assert stage.journal.reads <= reads + 6
        await run.finish()
        assert (await reader.fold("resp_1")).ended
        assert reader.folds is not None
        reader.folds.drop_old()
        assert len(reader.folds) == 0

    run_virtually(body())


def test_a_fold_that_nobody_asks_for_is_dropped() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        reader = stage.here.reader
        await reader.fold("resp_1")
        assert reader.folds is not None
        await pass_time(10.0)
        reader.folds.drop_old()
        assert len(reader.folds) == 1
        await pass_time(10.0)
        reader.folds.drop_old()
        assert len(reader.folds) == 0

    run_virtually(body())
