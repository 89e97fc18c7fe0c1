"""`make clients`: every client of the matrix against a live server, each in its own environment, and a page of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clients import snippets
from clients.table import Result, Row, rewrite
from clients.world import World, open_world

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "clients.md"
PYTHON = ROOT / "build" / "clients" / "venv" / "bin" / "python"
NODE = ROOT / "clients" / "node" / "node_modules" / ".bin" / "node"
# At most so long for all the checks of one client.
SECONDS = 150
AT_ONCE = 2

# Every client by the name of its program, in the order of the page. The first two are in the tests' environment.
PROGRAMS: dict[str, list[str]] = {
    "openai_sdk": [sys.executable, "-m", "clients.python.openai_lasting"],
    "openai": [str(NODE), "clients/node/openai.mjs"],
    "openai_agents": [sys.executable, "-m", "clients.python.openai_agents"],
    "agents": [str(NODE), "clients/node/agents.mjs"],
    **{
        name: [str(PYTHON), "-m", f"clients.python.{name}"]
        for name in ("langchain", "pydantic_ai", "agent_framework", "agno")
    },
    "ai": [str(NODE), "clients/node/ai.mjs"],
}


def try_client(name: str, world: World) -> Row:
    """Run one program and read its report; a program that ends before its time has failed as a whole."""
    command = [*PROGRAMS[name], world.server.base_url, world.desk.url]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        said, complaint = done.stdout, f"it ended with {done.returncode}:\n{done.stderr}" if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
        complaint = f"it was not done after {SECONDS} s"
    except OSError as error:
        said, complaint = "", f"it cannot be started: {error}"
    row = read_report(name, said)
    if complaint:
        row.results.append(Result("plain", "the program itself", complaint))
    return row


def read_report(name: str, said: str) -> Row:
    row = Row(name)
    for line in said.splitlines():
        if not line.startswith('{"client":'):
            continue  # something that the client printed
        report = json.loads(line)
        row.client = report["client"]
        if "feature" in report:
            row.results.append(Result(report["feature"], report["sentence"], report["error"]))
        else:
            row.packages, row.lacks = report["packages"], report["lacks"]
    return row


def try_snippets(world: World) -> list[str]:
    """Run the programs of the page for users; the titles of those that fail."""
    found = list(snippets.read_snippets(snippets.PAGE.read_text()))

    def one(snippet: snippets.Snippet) -> str:
        interpreter = str(NODE if snippet.language == "js" else PYTHON)
        return snippets.run_snippet(snippet, interpreter, world.server.base_url)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        errors = list(pool.map(one, found))
    failed = [(snippet.title, error) for snippet, error in zip(found, errors, strict=True) if error]
    print(f"{snippets.PAGE.name}: {len(found) - len(failed)} of {len(found)} programs", flush=True)
    for title, error in failed:
        print(f"  FAILS {title}\n{error}", flush=True)
    return [title for title, _ in failed]


def tell(row: Row, seconds: float) -> None:
    good = len(row.results) - len(row.failures)
    print(f"{row.client}: {good} of {len(row.results)} in {seconds:.0f} s", flush=True)
    for result in row.failures:
        print(f"  FAILS {result.feature}: {result.sentence}\n{result.error}", flush=True)
    for feature in row.untold:
        print(f"  says nothing of: {feature}", flush=True)


def try_all(names: Sequence[str], nested: bool) -> tuple[list[Row], bool]:
    """Every client against one world; and whether all is well."""

    def one(name: str) -> Row:
        started = time.monotonic()
        row = try_client(name, world)
        tell(row, time.monotonic() - started)
        return row

    with tempfile.TemporaryDirectory() as folder, open_world(Path(folder), nested) as world:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rows = list(pool.map(one, names))
        well = not any(row.failures or row.untold for row in rows)
        if not nested and len(names) == len(PROGRAMS):
            well = not try_snippets(world) and well
        if "Traceback" in world.server.log:
            print(f"The server complained:\n{world.server.log}")
            well = False
    return rows, well


def main(names: Sequence[str]) -> int:
    begun = time.monotonic()
    print("With a model's server that speaks Chat Completions:", flush=True)
    rows, well = try_all(names or list(PROGRAMS), nested=False)
    if not names:  # a page about some of them would be no page about all
        PAGE.write_text(rewrite(PAGE.read_text(), rows))
    print("With a model's server that speaks Responses:", flush=True)
    well = try_all(names or list(PROGRAMS), nested=True)[1] and well
    print(f"{'All is well' if well else 'Not all is well'}, after {time.monotonic() - begun:.0f} s.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
