"""The examples and the snippets of the client page run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from openai import OpenAI

import outlive.client
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, ending, say, text

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PAGE = EXAMPLES.parent / "docs" / "client.md"


def start(name: str, server: OutliveServer, model: str) -> subprocess.Popen[str]:
    env = os.environ | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "MODEL": model}
    return subprocess.Popen([sys.executable, str(EXAMPLES / name)], env=env, stdout=subprocess.PIPE, text=True)


def test_background_example_prints_both_answers(server: OutliveServer, upstream: FakeUpstream) -> None:
    with start("background_plain.py", server, upstream.model(say("Salt ", "stays."))) as example:
        printed, _ = example.communicate(timeout=30)
    assert printed == "plain:      Salt stays.\nbackground: Salt stays.\n"
    assert example.returncode == 0


def test_resume_example_finishes_the_stream_of_a_killed_process(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    words = [f"word{number} " for number in range(20)]
    model = upstream.model([*map(text, words[:10]), gate, *map(text, words[10:]), *ending()])
    with start("resume_in_another_process.py", server, model) as example:
        assert example.stdout is not None
        first = example.stdout.readline()
        assert "the first process is gone" in example.stdout.readline()
        gate.open()
        rest, status, whole = example.stdout.read().splitlines()
    assert example.returncode == 0
    assert "".join(words).startswith(first.rstrip("\n")) and "".join(words).rstrip().endswith(rest.rstrip())
    assert status == "-- completed; all of it:"
    assert whole == "".join(words)
    assert len(upstream.calls(model)) == 1


def test_every_snippet_of_the_client_page_runs(server: OutliveServer, upstream: FakeUpstream) -> None:
    upstream.on("demo", say("A ", "long ", "story."))
    names: dict[str, object] = {}
    for snippet in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        exec(snippet.replace("http://127.0.0.1:7878/v1", server.base_url), names)
    client = names["client"]
    assert isinstance(client, OpenAI)
    client.close()


def test_client_page_mentions_every_public_name() -> None:
    page = PAGE.read_text()
    unnamed = {name for name in outlive.client.__all__ if name not in page}
    assert unnamed == {"TERMINAL_STATUSES", "ResponseStream", "AsyncResponseStream", "UnsuccessfulResponse"}
