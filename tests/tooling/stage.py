"""A server with agents, and what their tools were asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.crash.client import Client, Json
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, call, ending

ROOT = Path(__file__).parent.parent.parent
MODULES = {
    "librarian_to_serve": ("librarian", "triage", "guarded", "cataloguer", "clumsy", "pointer", "cautious"),
    "archivist_to_serve": ("archivist", "filer", "seeker", "faller"),
    "agents_to_serve": (
        "clerk", "asker", "echo", "broken", "slow_reader", "silent", "absent", "endless", "two_at_once", "fickle",
        "complaining",
    ),
}  # fmt: skip


class Stage:
    """Not started yet. `gate` holds the tools up while it is closed."""

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
        self.client = Client(self.server.port)

    def start(self, *names: str, **env: str) -> OutliveServer:
        """With these agents, of which only the modules are loaded that they need: the SDKs take a second or two."""
        agents = [
            f"tests.tooling.{module}:{name}" for module, known in MODULES.items() for name in known if name in names
        ]
        self.server.flags = [*self._flags, *(word for agent in agents for word in ("--agent", agent))]
        return self.server.start(**env)

    def stop(self) -> None:
        self.server.kill()
        assert "canary" not in self.server.log

    @property
    def calls(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []


def want(word: str, call_id: str = "call_1", tool: str = "look_up") -> list[Any]:
    return [call(0, json.dumps({"word": word}), call_id, tool), *ending("tool_calls")]


def shapes(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def said(response: Json) -> str:
    parts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(parts)


def find_call(response: Json) -> Json:
    (made,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    return dict(made)
