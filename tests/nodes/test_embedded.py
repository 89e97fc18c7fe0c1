"""Failover with a real model: another node continues the text that a killed node was generating."""

from __future__ import annotations

from pathlib import Path

from tests.support.checks import check_conversation, check_ended
from tests.support.cluster import Cluster, ResumingReader
from tests.support.http_client import text_of

QUESTION = "Tell me a long story about a lighthouse and the sea."


def test_another_node_continues_a_text_of_the_embedded_model(tmp_path: Path) -> None:
    with Cluster(tmp_path, None) as cluster:
        # It kills itself once a few tokens are durable, so that the model cannot end first.
        killed = cluster.add().launch(OUTLIVE_KILL_AT="after-commit-of-append:8")
        cluster.start(2)
        conversation = cluster[1].client.create_conversation()
        stream = killed.client.stream(
            "any", input=QUESTION, max_output_tokens=100, temperature=0, conversation=conversation
        )
        stream.read_type("response.output_text.delta")
        reader = ResumingReader(cluster, stream.id, stream)
        assert killed.wait_exit() == -9
        cluster.nodes.remove(killed)
        reader.wait()
        body = check_ended(cluster[0].client, stream.id, reader.frames)
        assert body["status"] in ("completed", "incomplete")
        assert (body["incomplete_details"] or {}).get("reason") in (None, "max_output_tokens")
        assert len(body["output"]) == 1
        assert body["outlive"]["attempts"] == 2 and len(body["outlive"]["resumed_at"]) == 1
        assert 0 < body["usage"]["output_tokens"] <= 100
        assert len(text_of(body)) > 100
        check_conversation(cluster[0].client, conversation, [body])
        cluster.check()
