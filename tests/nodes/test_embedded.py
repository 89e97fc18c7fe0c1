"""Same-stream failover with a real model: what a killed node was saying, another goes on saying, in the same text."""

from __future__ import annotations

from pathlib import Path

from tests.crash.checker import check_conversation, check_ended
from tests.crash.client import text_of
from tests.nodes.crew import Crew
from tests.nodes.reader import Reader

ASK = "Tell me a long story about a lighthouse and the sea."


def test_a_text_of_the_embedded_model_goes_on_from_node_to_node(tmp_path: Path) -> None:
    crew = Crew(tmp_path, None)
    for _ in range(3):
        crew.add()
    try:
        crew.start()
        conversation = crew[1].client.new_conversation()
        stream = crew[0].client.stream("any", ASK, max_output_tokens=100, conversation=conversation)
        stream.read_type("response.output_text.delta")
        reader = Reader(crew, stream.id, stream)
        # Whichever runs it is killed in mid-sentence.
        reader.wait_count(reader.count + 20)
        (node,) = [each for each in crew.nodes if str(each.pid) == crew.holder(stream.id)]
        node.kill()
        crew.nodes.remove(node)
        reader.wait()
        body = check_ended(crew[0].client, stream.id, reader.frames)
        assert body["status"] in ("completed", "incomplete")
        assert (body["incomplete_details"] or {}).get("reason") in (None, "max_output_tokens")
        assert len(body["output"]) == 1
        assert body["outlive"]["attempts"] == 2 and len(body["outlive"]["resumed_at"]) == 1
        assert 0 < body["usage"]["output_tokens"] <= 100
        assert len(text_of(body)) > 100
        check_conversation(crew[0].client, conversation, [body])
        crew.check()
    finally:
        crew.stop()
