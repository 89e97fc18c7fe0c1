"""The embedded model, which is a real one: it answers, and continues its text after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import HttpClient, text_of
from tests.support.server import OutliveServer

QUESTION = "Tell me a long story about a lighthouse and the sea."


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OutliveServer]:
    server = OutliveServer(tmp_path / "server", None)
    try:
        yield server.start()
    finally:
        server.kill()


def test_the_embedded_model_continues_its_text_after_a_kill(server: OutliveServer, client: HttpClient) -> None:
    conversation = client.create_conversation()
    plain = client.create("whatever", input="Say hello.", max_output_tokens=16, conversation=conversation).json()
    assert plain["status"] in ("completed", "incomplete")
    assert text_of(plain) and plain["model"] == "smollm2-135m-instruct"
    assert 0 < plain["usage"]["output_tokens"] <= 16

    # The server kills itself once a few tokens are durable, so that the model cannot end first.
    server.restart(OUTLIVE_KILL_AT="after-commit-of-append:8")
    with client.stream(
        "whatever", input=QUESTION, max_output_tokens=120, temperature=0, conversation=conversation
    ) as stream:
        stream.read_all()
    assert stream.cut and server.wait_exit() == -9
    (item_id,) = {event["item_id"] for event in stream.events if "item_id" in event}
    deltas = [event["delta"] for event in stream.events if event["type"] == "response.output_text.delta"]
    before = "".join(deltas)

    server.start()
    with client.follow(stream.id, after=stream.last_number) as resumed:
        resumed.read_all()
    assert resumed.complete
    body = check_ended(client, stream.id, stream.frames + resumed.frames)
    assert body["status"] in ("completed", "incomplete")
    assert (body["incomplete_details"] or {}).get("reason") in (None, "max_output_tokens")
    assert text_of(body).startswith(before) and len(text_of(body)) > len(before)
    assert [item["id"] for item in body["output"]] == [item_id]
    # The journal may contain more than was seen, so that it was resumed there or a little later.
    assert body["outlive"]["attempts"] == 2
    (resumed_at,) = body["outlive"]["resumed_at"]
    assert resumed_at > stream.last_number
    assert len(deltas) < body["usage"]["output_tokens"] <= 120
    check_conversation(client, conversation, [plain, body])

    assert server.terminate() == 0
    check_file(server.database)
