"""A server with agents, and the calls that their tools have received."""

from __future__ import annotations

from pathlib import Path

from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

ROOT = Path(__file__).parent.parent.parent
MODULES = {
    "openai_agents": (
        "openai_agent", "with_handoff", "with_guardrail", "structured_openai", "failing_tool_openai",
        "tool_output_is_answer", "needs_approval",
    ),
    "pydantic_agents": ("pydantic_agent", "structured_pydantic", "retrying_tool", "failing_tool_pydantic"),
    "function_agents": (
        "two_calls", "one_call", "echo", "raises_error", "slow_text", "no_text", "returns_none", "ignores_cancel",
        "parallel_calls", "diverging", "raises_agent_error",
    ),
}  # fmt: skip


class AgentServer:
    """A server that is not started yet. The agents' tools wait until the file `gate` exists."""

    def __init__(self, folder: Path, upstream: FakeUpstream) -> None:
        self.file = folder / "calls"
        self.gate = folder / "gate"
        self.gate.touch()
        env = {
            "PYTHONPATH": str(ROOT),
            "MODEL_URL": upstream.url,
            "TOOL_FILE": str(self.file),
            "TOOL_GATE": str(self.gate),
        }
        self.server = OutliveServer(folder / "server", upstream.url, "--log-level", "debug", env=env)
        self._flags = self.server.flags
        self.client = HttpClient(self.server.port)

    def start(self, *names: str, **env: str) -> OutliveServer:
        """Start it with these agents. Only the modules that they need are loaded: the SDKs take a second or two."""
        agents = [
            f"tests.served_agents.{module}:{name}"
            for module, known in MODULES.items()
            for name in known
            if name in names
        ]
        self.server.flags = [*self._flags, *(word for agent in agents for word in ("--agent", agent))]
        return self.server.start(**env)

    def stop(self) -> None:
        self.server.kill()
        assert "canary" not in self.server.log

    @property
    def calls(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []


def item_types(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def output_text(response: Json) -> str:
    parts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(parts)
