"""Output on a pseudo-terminal, and items as lines."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlive.cli.terminal import clean, item_line, show_time
from tests.cli.servers import MESSAGE, FakeOutlive, response


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


def test_a_locale_that_lacks_characters_shows_the_others_and_whole_json(fake: FakeOutlive, server: str) -> None:
    fake.waiting = [
        response("resp_3", output=[{**MESSAGE, "content": [{"type": "output_text", "text": "gr\u00fcn \u2713"}]}])
    ]
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1", "OUTLIVE_SERVER": server}
    command = [sys.executable, "-m", "outlive", "responses", "show", "resp_3"]
    shown, given = (
        subprocess.run([*command, *more], env=environ, capture_output=True, check=True).stdout
        for more in ([], ["--json"])
    )
    assert "gr\u00fcn ?" in shown.decode("latin-1")
    assert json.loads(given)["output"][0]["content"][0]["text"] == "gr\u00fcn \u2713"


def test_a_locale_without_the_doctors_signs_gets_words(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "outlive", "doctor", "--no-probe", "--upstream", "http://127.0.0.1:9/v1"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, check=False)
    assert "  ok settings: 1 upstreams" in done.stdout.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "words", ["--version", "responses list", "responses list --json", "responses tail resp_1", "usage --csv --database"]
)
def test_output_to_a_full_disk_ends_with_one_sentence(words: str, server: str, tmp_path: Path) -> None:
    database, command = f"sqlite:///{tmp_path}/o.db", [sys.executable, "-m", "outlive"]
    subprocess.run([*command, "keys", "new", "--owner", "a", "--database", database], capture_output=True, check=True)
    if words.endswith("--database"):
        words += f" {database}"
    environ = {**os.environ, "OUTLIVE_SERVER": server}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*command, *words.split()], env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "outlive: The output cannot be written: No space left on device.\n"


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
