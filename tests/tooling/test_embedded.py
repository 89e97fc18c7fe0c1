"""Tools and agents on the embedded model, a real one without a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.checks import check_ended
from tests.support.http_client import HttpClient, text_of
from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer

ROOT = Path(__file__).parent.parent.parent
AGENTS = ("openai_agents:openai_agent", "pydantic_agents:pydantic_agent")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """Start a server with the embedded model that may use private addresses."""
    with OutliveServer(tmp_path_factory.mktemp("model"), None, env={"OUTLIVE_MCP_PRIVATE": "true"}) as running:
        yield running


def test_a_real_model_is_offered_the_tools_of_a_real_mcp_server(model: OutliveServer, tmp_path: Path) -> None:
    with McpServer(tmp_path / "mcp") as mcp:
        mcp.open_gate()
        tool = {"type": "mcp", "server_label": "notes", "server_url": mcp.url, "require_approval": "never"}
        ended = (
            HttpClient(model.port).create("demo", input="Remember the milk.", tools=[tool], max_output_tokens=60).json()
        )
    assert ended["status"] in ("completed", "incomplete")
    assert ended["output"][0]["type"] == "mcp_list_tools"
    check_ended(HttpClient(model.port), ended["id"])


def test_agents_on_a_real_model_survive_a_kill_in_the_middle_of_a_text(model: OutliveServer, tmp_path: Path) -> None:
    flags = [word for agent in AGENTS for word in ("--agent", f"tests.served_agents.{agent}")]
    env = {"PYTHONPATH": str(ROOT), "MODEL_URL": model.base_url, "MODEL_NAME": "demo"}
    with OutliveServer(tmp_path / "server", None, *flags, env=env) as server, ExitStack() as stack:
        client = HttpClient(server.port)
        names = ("Openai-Agent", "pydantic_agent")
        streams = [stack.enter_context(client.stream(name, input="Tell me a long story.")) for name in names]
        for stream in streams:
            for _ in range(5):
                stream.read_type("response.output_text.delta")
        server.kill()
        for stream in streams:
            while stream.read() is not None:
                pass
        server.start()
        for name, stream in zip(names, streams, strict=True):
            with client.follow(stream.id, stream.last_number) as rest:
                ended = check_ended(client, stream.id, [*stream.frames, *rest.read_all().frames])
            shown = "".join(e["delta"] for e in stream.events if e["type"] == "response.output_text.delta")
            # Only its model could continue in the middle of a text: what was shown stays, and the response has ended.
            assert ended["status"] == "incomplete" and text_of(ended).startswith(shown)
            assert client.create(name, input="Say hello.", max_output_tokens=20).json()["status"] == "completed"
