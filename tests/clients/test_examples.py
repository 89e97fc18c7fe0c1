"""Programs in the shape of OpenAI's own examples run with nothing special but the base URL and the model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.python.checks import Target

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "openai"
NOVEL = "You said: Write a very long novel about otters in space."
JOKE = "You said: Tell me a short joke."
REPORT = "city='Rome' degrees=21"
COUNTED = "You said: Count slowly to one hundred."

# What each prints, as a pattern.
PRINTED = {
    "background": rf"(Current status: (queued|in_progress)\n)*Final status: completed\nOutput:\n{NOVEL}",
    "background_async": rf"Final status: completed\nOutput:\n{NOVEL}",
    "background_streaming": r"You\nInterrupted\. Continuing \.\.\.\n said: Count slowly to one hundred\.\nDone\.",
    "streaming": rf"response\.created\n(response\.[\w.]+\n)+response\.completed\n{JOKE}\nFinal: {JOKE}",
    "structured_outputs": rf"Parsed: {REPORT}\nStreamed: {REPORT}",
    "tools": r"Called: weather\(Rome\)\nAnswer: The tool says: sunny in Rome\.",
    "websocket": r"Your name is Ada\.",
    "input_tokens": r"Input tokens: [1-9]\d*",
}


@pytest.fixture(scope="module")
def running(target: Target) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All of them at once, for most of what they do is to start."""
    env = os.environ | {"OPENAI_BASE_URL": target.base_url, "OPENAI_API_KEY": "any"}
    started = {
        name: subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py")],
            env=env | {"MODEL": target.model()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in PRINTED
    }
    yield started
    for each in started.values():
        each.kill()
        each.communicate()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_the_expected_text(name: str, running: dict[str, subprocess.Popen[str]]) -> None:
    said, _ = running[name].communicate(timeout=60)
    assert running[name].returncode == 0, said
    assert re.fullmatch(PRINTED[name], said.rstrip("\n")), said


def test_every_example_has_an_expected_text() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == PRINTED.keys()
