"""Building an engine: the parts that a single server and a node of a cluster get."""

from __future__ import annotations

from pathlib import Path

from outlive.engine.ephemeral import MemoryJournal
from tests.engine.bus import Bus
from tests.engine.harness import Harness, run_with_harness
from tests.support.scripting import Gate

ANSWER = ["Hello"]


def test_a_single_server_has_no_cluster_parts(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        engine = harness.engine
        assert (engine.node, engine.reader.mirrors, engine.reader.remote_folds) == (None,) * 3
        assert isinstance(engine.reader.journal, MemoryJournal)

    run_with_harness(tmp_path, body, ANSWER)


def test_a_node_of_a_cluster_mirrors_and_notifies(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        engine = harness.engine
        for part in (engine.node, harness.notifier, engine.reader.mirrors, engine.reader.remote_folds):
            assert part is not None

    run_with_harness(tmp_path, body, ANSWER, bus=Bus())


def test_all_parts_share_one_registry_committer_and_shutdown(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        engine = harness.engine
        assert engine.reader.live is engine.worker._live is engine.ephemeral._live
        assert engine.reader.shutdown is engine.worker._shutdown
        stored, ephemeral = await harness.create(), await harness.create(store=False)
        for accepted in (stored, ephemeral):
            assert engine.reader.live.get(accepted.response_id) is not None

    run_with_harness(tmp_path, body, [Gate()])
