"""Output on a pseudo-terminal, and items as lines."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest

from outlive.cli.terminal import clean, item_line, show_time
from tests.cli.servers import FakeOutlive


def run_on_terminal(*words: str) -> str:
    """Return the output of a command on a terminal of 200 columns, without colours."""
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
    with subprocess.Popen(
        [sys.executable, "-m", "outlive", *words], stdout=slave, stderr=slave, env=environ
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # on Linux: the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(master)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")


def test_a_terminal_gets_a_table(server: str) -> None:
    lines = run_on_terminal("responses", "list", "--server", server).splitlines()
    assert lines[0].split() == ["ID", "STATUS", "MODEL", "CREATED", "TOKENS", "CONVERSATION", "WAITING"]
    assert lines[1].split()[:3] == ["resp_1", "completed", "demo"]
    assert "\t" not in lines[1]


def test_a_terminal_shows_the_text_and_the_end(server: str) -> None:
    shown = run_on_terminal("responses", "tail", "resp_1", "--server", server)
    assert "Once upon\n" in shown
    assert shown.rstrip().endswith("completed · 5 tokens")


def test_a_break_in_mid_sentence_keeps_the_text(server: str, fake: FakeOutlive) -> None:
    fake.cuts = [4]
    assert "Once  (cut, going on) upon\n" in run_on_terminal("responses", "tail", "resp_1", "--server", server)


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (
            {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "18", "status": "completed"},
            "calls: f({}) = 18",
        ),
        ({"type": "mcp_call", "name": "f", "arguments": "{}", "status": "calling"}, "calls: f({})  [calling]"),
        ({"type": "mcp_approval_request", "name": "f", "arguments": "{}"}, "asks to call: f({})"),
        ({"type": "message", "role": "user", "content": "hi"}, "user: hi"),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
            "user: a[input_image]",
        ),
        ({"type": "message", "role": "assistant", "content": [], "status": "incomplete"}, "assistant:   [incomplete]"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "calls: f({})"),
        ({"type": "custom_tool_call", "name": "f", "input": "x"}, "calls: f(x)"),
        ({"type": "function_call_output", "output": "7"}, "tool says: 7"),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "thinks: hm"),
        ({"type": "compaction"}, "compaction: "),
    ],
)
def test_every_item_is_one_line(item: dict[str, Any], line: str) -> None:
    assert item_line(item).plain == line


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert clean("a\x1b]0;x\x07b\n\tc\x9bd") == "a]0;xb\n\tcd"


def test_a_missing_time_is_empty() -> None:
    assert show_time(None) == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", show_time(1_700_000_000))
