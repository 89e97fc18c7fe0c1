"""The examples of agents work unchanged, and a server loads no SDK that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.served_agents.harness import item_types, output_text
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, call, ending, say

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "agents"
HEAVY = ("mcp", "agents", "openai", "pydantic_ai", "pydantic")


def test_the_examples_of_agents_work_unchanged(tmp_path: Path, upstream: FakeUpstream) -> None:
    names = ("function:reporter", "openai_agents:librarian", "pydantic_ai:archivist")
    flags = [word for name in names for word in ("--agent", f"examples.agents.{name}")]
    env = {"PYTHONPATH": str(ROOT), "MODEL_URL": upstream.url}
    with OutliveServer(tmp_path / "server", None, *flags, env=env) as server:
        client = HttpClient(server.port)
        assert output_text(client.create("reporter", input="one two three").json()) == "Let me count. You said 3 words."
        for name, tool, argument in (("librarian", "find_book", "title"), ("archivist", "find_file", "name")):
            upstream.queue([call(0, f'{{"{argument}": "Emma"}}', "c1", tool), *ending("tool_calls")], "MODEL")
            upstream.queue(say("There."), "MODEL")
            made = client.create(name, input="Where is Emma?").json()
            assert (item_types(made), output_text(made)) == (["mcp_call", "message"], "There.")
            assert made["output"][0]["output"].startswith("Emma ")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_has_at_most_15_lines_of_code(file: Path) -> None:
    code = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 15


def test_a_server_that_uses_no_sdk_loads_none(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from outlive.config.settings import Settings\n"
        "import outlive.cli\n"
        "from outlive.clock import RandomIds\n"
        "from outlive.app import build_tools\n"
        "from outlive.served_agents.backend import load_agents\n"
        "settings = Settings()\n"
        "build_tools(settings, RandomIds(), None); load_agents(settings, RandomIds())\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
