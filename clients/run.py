"""`make clients`: run every client of the matrix against a live server, and write the page about them."""

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
from clients.harness import Harness, open_harness
from clients.page import Result, Row, rewrite

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "clients.md"
ENVIRONMENTS = ROOT / "build" / "clients"
NODE = ROOT / "clients" / "node" / "node_modules" / ".bin" / "node"
# The limit for all checks of one client together.
SECONDS = 600
CONCURRENCY = 2


def _python(environment: str) -> str:
    """Return the interpreter of an environment of `clients/environments`."""
    return str(ENVIRONMENTS / environment / "bin" / "python")


def _in_python(name: str, environment: str | None = None) -> list[str]:
    """Return the command for a program in Python; without an environment, in the one of its name."""
    return [_python(environment or name), "-m", f"clients.python.{name}"]


def _in_node(name: str) -> list[str]:
    return [str(NODE), f"clients/node/{name}.mjs"]


# Every client by its name here, in the order of the page. Those with this interpreter are in the tests' environment.
PROGRAMS: dict[str, list[str]] = {
    "openai_sdk": [sys.executable, "-m", "clients.python.openai_lasting"],
    "openai": _in_node("openai"),
    "openai_agents": [sys.executable, "-m", "clients.python.openai_agents"],
    "agents": _in_node("agents"),
    **{name: _in_node(name) for name in ("codex", "opencode", "pi")},
    "llm": _in_python("llm"),
    **{name: _in_python(name, "frameworks") for name in ("langchain", "pydantic_ai", "agent_framework", "agno")},
    **{
        name: _in_python(name)
        for name in (
            "ag2", "crewai", "dspy", "haystack", "instructor", "litellm", "llama_index", "semantic_kernel", "strands",
        )
    },
    "ai": _in_node("ai"),
    "open_responses": _in_node("open_responses"),
    "langchain_js": _in_node("langchain"),
    "mastra": _in_node("mastra"),
}  # fmt: skip


def try_client(name: str, harness: Harness) -> Row:
    """Run one program and read its report; a program that does not end well has failed as a whole."""
    command = [*PROGRAMS[name], harness.server.base_url, harness.control.url]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        output, failure = done.stdout, f"it ended with {done.returncode}:\n{done.stderr}" if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
        failure = f"it was not done after {SECONDS} s"
    except OSError as error:
        output, failure = "", f"it cannot be started: {error}"
    row = read_report(name, output)
    if failure:
        row.results.append(Result("plain", "the program itself", failure))
    return row


def read_report(name: str, output: str) -> Row:
    row = Row(name)
    for line in output.splitlines():
        if not line.startswith('{"client":'):
            continue  # printed by the client
        report = json.loads(line)
        row.client = report["client"]
        if "feature" in report:
            row.results.append(Result(report["feature"], report["sentence"], report["error"]))
        else:
            row.packages, row.lacks = report["packages"], report["lacks"]
    return row


def try_snippets(harness: Harness) -> list[str]:
    """Run the programs of the page for users, and return the titles of those that fail."""
    found = list(snippets.read_snippets(snippets.PAGE.read_text()))

    def one(snippet: snippets.Snippet) -> str:
        interpreter = str(NODE) if snippet.language == "js" else _python(snippet.environment)
        return snippets.run_snippet(snippet, interpreter, harness.server.base_url)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        errors = list(pool.map(one, found))
    failed = [(snippet.title, error) for snippet, error in zip(found, errors, strict=True) if error]
    print(f"{snippets.PAGE.name}: {len(found) - len(failed)} of {len(found)} programs", flush=True)
    for title, error in failed:
        print(f"  FAILS {title}\n{error}", flush=True)
    return [title for title, _ in failed]


def print_row(row: Row, seconds: float) -> None:
    good = len(row.results) - len(row.failures)
    print(f"{row.client}: {good} of {len(row.results)} in {seconds:.0f} s", flush=True)
    for result in row.failures:
        print(f"  FAILS {result.feature}: {result.sentence}\n{result.error}", flush=True)
    for feature in row.unreported:
        print(f"  no check and no reason for: {feature}", flush=True)


def try_all(names: Sequence[str], nested: bool) -> tuple[list[Row], bool]:
    """Run the clients against one harness; return their rows, and True if nothing failed."""

    def one(name: str) -> Row:
        started = time.monotonic()
        row = try_client(name, harness)
        print_row(row, time.monotonic() - started)
        return row

    with tempfile.TemporaryDirectory() as folder, open_harness(Path(folder), nested) as harness:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            rows = list(pool.map(one, names))
        passed = not any(row.failures or row.unreported for row in rows)
        if not nested and len(names) == len(PROGRAMS):
            passed = not try_snippets(harness) and passed
        if "Traceback" in harness.server.log:
            print(f"The server logged a traceback:\n{harness.server.log}")
            passed = False
    return rows, passed


def main(names: Sequence[str]) -> int:
    started = time.monotonic()
    print("With a model's server that speaks Chat Completions:", flush=True)
    rows, passed = try_all(names or list(PROGRAMS), nested=False)
    if not names:  # the page is about all of them
        PAGE.write_text(rewrite(PAGE.read_text(), rows))
    print("With a model's server that speaks Responses:", flush=True)
    passed = try_all(names or list(PROGRAMS), nested=True)[1] and passed
    print(f"{'All checks passed' if passed else 'Some checks failed'} in {time.monotonic() - started:.0f} s.")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
