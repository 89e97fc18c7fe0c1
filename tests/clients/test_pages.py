"""The Python of the README and of the how-to pages works as it stands, against a live server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from openai import OpenAI

from clients.python.checks import Target
from clients.snippets import ADDRESS

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    "README.md",
    "docs/how-to/background-and-polling.md",
    "docs/how-to/conversations.md",
    "docs/how-to/long-conversations.md",
    "docs/how-to/resume-a-stream.md",
    "docs/how-to/use-a-websocket.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_every_program_on_the_page_runs(page: str, target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    """From top to bottom, as a reader would try them."""
    names: dict[str, object] = {"__name__": "__main__"}
    programs = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    assert programs
    clients: list[OpenAI] = []
    for program in programs:
        exec(compile(program.replace(ADDRESS, target.base_url), page, "exec"), names)
        client = names["client"]
        assert isinstance(client, OpenAI)
        clients.append(client)
    for client in clients:
        client.close()
    assert capsys.readouterr().out
