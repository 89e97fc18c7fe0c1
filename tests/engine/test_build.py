"""Building an engine: the parts that a single server and a node of a cluster get."""

from __future__ import annotations

from pathlib import Path

from outlive.engine.ephemeral import Journals
from tests.engine.bus import Bus
from tests.engine.harness import Harness, run_with_harness

ANSWER = ["Hello"]


def test_a_single_server_has_no_cluster_parts(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parts = harness.engine.parts
        assert (parts.node, parts.reader.mirrors, parts.reader.remote_folds) == (None,) * 3
        assert isinstance(parts.reader.journal, Journals)

    run_with_harness(tmp_path, body, ANSWER)


def test_a_node_of_a_cluster_mirrors_and_notifies(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parts = harness.engine.parts
        for part in (parts.node, harness.notifier, parts.reader.mirrors, parts.reader.remote_folds):
            assert part is not None

    run_with_harness(tmp_path, body, ANSWER, bus=Bus())


def test_all_parts_share_one_registry_committer_and_shutdown(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parts = harness.engine.parts
        assert parts.reader.live is parts.worker._live is parts.ephemeral._live
        assert parts.reader.shutdown is parts.worker._shutdown
        stored, ephemeral = await harness.create(), await harness.create(store=False)
        for accepted in (stored, ephemeral):
            assert parts.reader.live.get(accepted.response_id) is not None

    run_with_harness(tmp_path, body, ANSWER)
