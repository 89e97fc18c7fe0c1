"""Runs the programs on the page about clients as a reader would."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "use-your-client.md"
ENVIRONMENTS = ROOT / "clients" / "environments"
ADDRESS = "http://127.0.0.1:7878/v1"
SECONDS = 300


class Snippet(NamedTuple):
    """One program of the page; its title is the section's."""

    title: str
    language: str
    code: str

    @property
    def environment(self) -> str:
        """The environment of `clients/environments` that has the section's name, or the shared one."""
        title = re.sub(r"\W", "", self.title).lower()
        names = (file.stem for file in ENVIRONMENTS.glob("*.txt"))
        return next((name for name in names if name.replace("_", "") == title), "frameworks")


def read_snippets(page: str) -> Iterator[Snippet]:
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        for language, code in re.findall(r"^```(js|python)\n(.*?)^```$", section, re.M | re.S):
            yield Snippet(section.partition("\n")[0], language, code)


def read_configuration(title: str, model: str, base_url: str) -> str:
    """Return the first block of a section that configures a client, for this model and server."""
    found = re.search(rf"^###? {title}\n.*?^```\w+\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found is not None, title
    return found[1].replace(ADDRESS, base_url).replace("demo", model)


def run_snippet(snippet: Snippet, interpreter: str, base_url: str) -> str:
    """Return why it failed; empty if it ended well, printed something, and remembered the name it was given."""
    # Node looks for packages from a program's folder upwards.
    folder = ROOT / "clients" / "node" if snippet.language == "js" else ROOT / "build"
    folder.mkdir(exist_ok=True)
    ending = ".mjs" if snippet.language == "js" else ".py"
    with tempfile.NamedTemporaryFile("w", suffix=ending, prefix="snippet-", dir=folder) as file:
        file.write(snippet.code.replace(ADDRESS, base_url))
        file.flush()
        try:
            done = subprocess.run(
                [interpreter, file.name], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    forgot = "What is my name?" in snippet.code and "Ada" not in done.stdout.strip().rpartition("\n")[2]
    if done.returncode or forgot or not done.stdout.strip():
        return f"it ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return ""
