"""Reading [mcp.LABEL] of the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.config.load import load
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.ports.toolbox import ToolServer

WHOLE = """
tool_seconds = 7.0
[mcp.desk]
url = "https://desk.example.com/mcp"
transport = "sse"
authorization = "env:DESK_TOKEN"
headers = { X-Team = "env:DESK_TEAM" }
allowed_tools = ["add"]
idempotent_tools = ["set"]
require_approval = "always"
[mcp.plain]
url = "http://127.0.0.1:8000/mcp"
"""


def read(tmp_path: Path, text: str, **environ: str) -> Settings:
    path = tmp_path / "outlive.toml"
    path.write_text(text)
    return load({"config": str(path)}, environ)


def test_a_table_is_read_as_a_tool_server(tmp_path: Path) -> None:
    settings = read(tmp_path, WHOLE, DESK_TOKEN="s3cret", DESK_TEAM="t3am")
    assert settings.mcp == [
        ToolServer(
            label="desk",
            url="https://desk.example.com/mcp",
            transport="sse",
            authorization="s3cret",
            headers={"X-Team": "t3am"},
            allowed_tools=["add"],
            idempotent_tools=["set"],
            require_approval="always",
            seconds=7.0,
        ),
        ToolServer(label="plain", url="http://127.0.0.1:8000/mcp", seconds=7.0),
    ]
    assert "s3cret" not in repr(settings) and "t3am" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mcp]\ndesk = 1", "[mcp.LABEL]"),
        ("[mcp.desk]", "has no url"),
        ('[mcp.desk]\nurl = "desk.example.com"', "must be a URL"),
        ('[mcp.desk]\nurl = "https://x"\ntransport = "carrier pigeon"', "transport"),
        ('[mcp.desk]\nurl = "https://x"\nallowed_tools = "add"', "list of names"),
        ('[mcp.desk]\nurl = "https://x"\nauthorisation = "x"', "authorization"),
        ('[mcp.desk]\nurl = "https://x"\nauthorization = "env:NOT_SET"', "NOT_SET"),
        ('[mcp.desk]\nurl = "https://x"\nheaders = "x"', "table"),
        ('[mcp.outlive]\nurl = "https://x"', "outlive"),
        ('[mcp."a b"]\nurl = "https://x"', "letters"),
        ('mcp_requests = "allow-list"', "--mcp-host"),
        ('mcp_hosts = ["mcp.example.com"]', "allow-list"),
        ('mcp_requests = "some"', "off, allow-list, public"),
    ],
)
def test_a_wrong_table_raises_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
