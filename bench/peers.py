"""`make peers`: Outlive, the relay, OGX and LiteLLM under the same loads, and what each keeps of a response.

OGX and LiteLLM are installed from their packages into environments of their own, which need Python 3.12.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import machine
import run
import typer
import uvloop
from client import PROMPT
from load import Plan, Window
from servers import Server
from sitting import Pick, Sitting, each
from upstream import text_of

BUILD = run.ROOT / "build" / "peers"
HERE = Path(__file__).resolve().parent / "peers"
README = run.ROOT / "README.md"
BEGIN, END = "<!-- written by make peers -->", "<!-- until here -->"
NAMES = {"relay": "relay, which stores nothing", "outlive": "Outlive", "ogx": "OGX", "litellm": "LiteLLM"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def peers(directory: Path, core: set[int], upstream: str) -> list[Server]:
    """Return those of the peers that are installed."""
    environment = {"BENCH_UPSTREAM": upstream, "BENCH_FOLDER": str(directory)}
    # OGX loads an encoding from the network at its start; LiteLLM's package contains it.
    for tokenizers in BUILD.glob("litellm/lib/*/site-packages/litellm/litellm_core_utils/tokenizers"):
        environment["TIKTOKEN_CACHE_DIR"] = str(tokenizers)
    commands = {
        "ogx": ["ogx", "run", str(HERE / "ogx.yaml"), "--insecure"],
        "litellm": ["litellm", "--config", str(HERE / "litellm.yaml"), "--host", "127.0.0.1"],
    }
    found = []
    for name, (program, *arguments) in commands.items():
        path, port = BUILD / name / "bin" / program, machine.free_port()
        if path.exists():
            command = [str(path), *arguments, "--port", str(port)]
            log, prefix = directory / f"{name}.log", "fake/" if name == "ogx" else ""
            found.append(Server(name, command, port, core, log, prefix, environment=environment))
    return found


# -- loads


async def measure(sitting: Sitting) -> dict[str, dict[str, str]]:
    """Return what was measured: for each column the value of each server."""
    cpu_per_1000, cpu_per_request = attrgetter("cpu_per_1000"), attrgetter("cpu_per_request")

    def delivered(window: Window) -> float:
        return 100 * window.tally.tokens / (200 * 50 * window.seconds)

    def first(window: Window) -> float:
        return window.first_ms(0.5)

    columns: dict[str, dict[str, str]] = {}
    plans: list[tuple[Plan, dict[str, tuple[Pick, str]]]] = [
        (Plan(mode="stream", model="fake-n100-d0"), {"CPU per 1,000 tokens, 8 clients": (cpu_per_1000, "ms")}),
        (Plan(mode="plain", model="fake-n1-d0"), {"CPU per plain request": (cpu_per_request, "ms")}),
        (
            Plan(mode="stream", model="fake-n100-d20-t1", clients=20, spread=2, seconds=8),
            {"time to first token, 20 streams, p50": (first, "ms")},
        ),
        (
            Plan(mode="stream", model="fake-n300-d20-t1", clients=200, seconds=6),
            {"delivered, 200 streams x 50/s": (delivered, "%"), "CPU per 1,000 tokens at that": (cpu_per_1000, "ms")},
        ),
    ]
    for plan, picks in plans:
        windows = await sitting.rounds(sitting.all, plan)
        for column, (pick, unit) in picks.items():
            columns[column] = each(windows, pick, unit)
    return columns


# -- what is kept of a response


def ask(server: Server, path: str, body: dict[str, Any] | None = None, timeout: float = 10) -> Any:
    """Send a request and return the open answer. Raises OSError, also for a status of 400 and more."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    return urllib.request.urlopen(urllib.request.Request(server.base + path, data, headers), timeout=timeout)


def start_stream(server: Server, **fields: Any) -> str:
    """Start a slow streamed response, read until its first words, cut the connection, and return its id."""
    model = f"{server.prefix}fake-n100-d20"
    with ask(server, "/responses", {"model": model, "input": PROMPT, "stream": True, **fields}) as answer:
        response_id = ""
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                response_id = response_id or str(event.get("response", {}).get("id", ""))
                if event["type"] == "response.output_text.delta":
                    return response_id
    raise OSError("the stream ended without a word")


def resumes(server: Server) -> bool:
    """Return True if a stream that was cut can be read to its end from where it was cut."""
    response_id = start_stream(server)
    with ask(server, f"/responses/{response_id}?stream=true&starting_after=4") as answer:
        return b"response.completed" in answer.read()


def continues(server: Server) -> bool:
    """Return True if the response of a stream that was cut has ended, with all of its text, some seconds later."""
    response_id = start_stream(server)
    time.sleep(4)
    return _is_whole(server, response_id)


def streams_in_background(server: Server) -> bool:
    start_stream(server, background=True)
    return True


def survives(server: Server) -> bool:
    """Return True if a response whose server was killed has come to an end some seconds after the next start."""
    response_id = start_stream(server)
    server.stop(signal.SIGKILL)
    server.start(120)
    time.sleep(4)
    with ask(server, f"/responses/{response_id}") as answer:
        return json.loads(answer.read())["status"] in ("completed", "incomplete", "failed")


def _is_whole(server: Server, response_id: str) -> bool:
    with ask(server, f"/responses/{response_id}") as answer:
        response = json.loads(answer.read())
    text = "".join(part.get("text", "") for item in response["output"] for part in item.get("content") or [])
    return response["status"] == "completed" and text == text_of(100)


PROBES: dict[str, Callable[[Server], bool]] = {
    "a stream that was cut can be resumed": resumes,
    "the answer of a stream that was cut is whole": continues,
    "background and stream together": streams_in_background,
    "a run ends after `kill -9` of its server": survives,
}


def probe(sitting: Sitting) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for what, try_ in PROBES.items():
        for server in [sitting.outlive, *sitting.peers]:
            sitting.say(f"{server.name}: {what}")
            try:
                holds = try_(server)
            except (OSError, KeyError, ValueError, TypeError):
                holds = False
            found.setdefault(what, {})[server.name] = "yes" if holds else "no"
    return found


# -- pages


def table(rows: dict[str, dict[str, str]], names: list[str]) -> str:
    heads = [NAMES[name] for name in names]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(names)]
    return "\n".join([*lines, *(f"| {row} | {' | '.join(v.get(n, '') for n in names)} |" for row, v in rows.items())])


def replace(page: Path, text: str) -> None:
    found = re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", page.read_text(), count=1, flags=re.DOTALL)
    page.write_text(found)


def versions() -> str:
    found = []
    for name in ("ogx", "litellm"):
        for folder in BUILD.glob(f"{name}/lib/*/site-packages/{name}-*.dist-info"):
            found.append(f"{NAMES[name]} {folder.name.split('-')[1].removesuffix('.dist')}")
    return ", ".join(found)


@app.command()
def main(
    runs: Annotated[int, typer.Option(help="Windows of each server, of which the median counts.")] = 1,
    write: Annotated[bool, typer.Option(help="Write docs/performance.md and README.md.")] = True,
) -> None:
    """Measure Outlive beside its peers, print the tables, and write them to docs/performance.md and README.md."""
    machine.raise_file_limit()
    run.RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run.RESULTS) as name, run.console.status("starting") as status:
        directory = Path(name)
        sitting = run.prepare(directory, [])
        sitting.peers = peers(directory, sitting.outlive.cores, sitting.upstream.base)
        sitting.runs, sitting.say = runs, status.update if run.console.is_terminal else print
        if not sitting.peers:
            raise typer.BadParameter("no peer is installed: `make peers` installs them, with Python 3.12 or newer")
        with run.running(sitting):
            loads = uvloop.run(measure(sitting))
            kept = probe(sitting)
    names = [server.name for server in sitting.all]
    run.console.print(table(loads, names), table(kept, names[1:]), sep="\n\n")
    for note in sitting.notes:
        run.console.print(f"* {note}", style="dim", highlight=False, markup=False)
    if write:
        measured = f"Measured on {time.strftime('%Y-%m-%d')} by `make peers`: {versions()}, one core for each in turn."
        replace(run.PAGE, f"{measured}\n\n{table(loads, names)}\n\n{table(kept, names[1:])}")
        replace(README, f"{table(kept | loads, names[1:])}")


if __name__ == "__main__":
    app()
