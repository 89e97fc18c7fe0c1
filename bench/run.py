"""`make bench`: Outlive beside a relay that keeps nothing, in one sitting, as one table of ratios."""

from __future__ import annotations

import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import machine
import msgspec
import servers
import typer
import uvloop
from client import PROMPT
from figures import Figure, markdown, table
from lines import LINES
from rich.console import Console
from sitting import BUSY, Sitting
from upstream import text_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "bench" / "results"

console = Console(width=None if sys.stdout.isatty() else 150)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def check(server: servers.Server, tokens: int = 100) -> None:
    """Read one stream in full: a server that leaves something out would look fast."""
    body = {"model": f"{server.prefix}fake-n{tokens}-d0", "input": PROMPT, "stream": True}
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    request = urllib.request.Request(f"{server.base}/responses", msgspec.json.encode(body), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            lines = [line[5:].strip() for line in answer if line.startswith(b"data:")]
    except OSError as error:
        raise RuntimeError(f"{server.name}: {error}\n{server.last_words()}") from error
    events = [msgspec.json.decode(line) for line in lines if line.startswith(b"{")]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    if text != text_of(tokens) or events[-1]["type"] != "response.completed":
        raise RuntimeError(f"{server.name} does not stream what the upstream said: {events[-1]}")


async def measure(sitting: Sitting, names: list[str]) -> list[Figure]:
    figures: list[Figure] = []
    for name in names:
        try:
            figures += await LINES[name](sitting)
        except (OSError, RuntimeError, KeyError) as error:  # one line that cannot be had must not cost the others
            sitting.notes.append(f"{name}: {type(error).__name__}: {error}")
            figures.append(Figure(name, "not measured", "", float("nan"), 0))
    return figures


PEERS = re.compile("<!-- written by make peers -->.*?<!-- until here -->", re.DOTALL)
PAGE_TEXT = """\
# Performance

The cost of durability: Outlive compared with a minimal relay (`bench/relay.py`) that translates the same stream and
stores nothing. Outlive commits every event to SQLite (WAL, `synchronous=FULL`) before it sends it. Each server is one
process, all on the same core, measured in turns; the load generator and the fake upstream (`bench/upstream.py`) use
the other cores. CPU and memory are the kernel's figures for the process and its children. Values are medians of the
runs.

The last columns have each server's own values; in lines about growth, the early and the late one, or those of the
small and the large database. `aim`: the aim is met; `holds`: the required value is met; `FAILS`: it is not. Times, and
to a lesser degree CPU, depend on other processes of the machine: compare the ratios. A window in which other processes
used more than {busy} cores is measured again, at most twice, unless the window dropped something. Nothing is sent
before it is on disk, so a slow sync delays every event; the longest sync of an idle disk is listed below.

In the lines about Postgres and nodes, Postgres runs durably (`fsync`) on the same machine, and its CPU is listed
separately from the nodes'. The capacity of one or two cores is calculated from the CPU per event at this load, not
measured by driving processes to their limit: on few cores the load generator, the upstream and Postgres would reach
their limits first.

{table}
{notes}
## Beside other servers

OGX and LiteLLM, installed from their packages, stand in front of the same upstream with the same loads. OGX stores
responses in SQLite; LiteLLM as it is installed stores none. What each keeps of a response was tried, not read.

{peers}

## How it was measured

| | |
|---|---|
{facts}

`make bench` repeats all measurements and writes this page. `make bench ARGS="--quick"` takes a few minutes and writes
nothing, nor does `--only burst`, which measures one line. `--peer 'NAME=COMMAND,PORT'` adds another server to the
table; `{{upstream}}` and `{{port}}` in its command are replaced.
"""


def page(figures: list[Figure], facts: dict[str, str], notes: list[str]) -> str:
    return PAGE_TEXT.format(
        busy=BUSY,
        table=markdown(figures),
        peers=PEERS.findall(PAGE.read_text())[0],
        notes="".join(f"\n* {note}" for note in notes) + "\n" * bool(notes),
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
    )


def facts_of(directory: Path, seconds: float) -> dict[str, str]:
    middle, tail, longest = machine.fsync_ms(directory)
    fsync = f"median {middle:.2f} ms, p99 {tail:.2f} ms, longest {longest:.0f} ms"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"`python bench/run.py {' '.join(sys.argv[1:])}`".replace(" `", "`"),
        "took": f"{seconds / 60:.0f} min",
        "fsync of 4 KB": f"{fsync}, on {machine.file_system(directory)}",
        **machine.describe(),
    }


@app.command()
def main(
    quick: Annotated[bool, typer.Option(help="One short run of each line: a first impression.")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"A line: {', '.join(LINES)}. May be repeated.")] = None,
    write: Annotated[bool, typer.Option(help="Write docs/performance.md.")] = True,
    runs: Annotated[int, typer.Option(help="Windows of each server, of which the median counts.")] = 3,
    peer: Annotated[list[str] | None, typer.Option(help="NAME=COMMAND,PORT[,MODEL-PREFIX] of another server.")] = None,
) -> None:
    """Measure, print the table, and write docs/performance.md. Ends with 1 when something that must hold does not."""
    names = only or list(LINES)
    if unknown := set(names) - set(LINES):
        raise typer.BadParameter(f"no such line: {', '.join(unknown)}; there are {', '.join(LINES)}")
    if sys.platform != "linux":
        raise typer.BadParameter("the bench reads /proc and pins processes to cores: it needs Linux")
    machine.raise_file_limit()
    RESULTS.mkdir(exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=RESULTS) as name, console.status("starting") as status:
        directory = Path(name)
        sitting = prepare(directory, peer or [])
        sitting.runs, sitting.quick, sitting.say = 1 if quick else runs, quick, status.update
        with running(sitting):
            figures = uvloop.run(measure(sitting, names))
        facts = facts_of(directory, time.monotonic() - started)
    console.print(table(figures, console.width))
    for note in sitting.notes:
        console.print(f"* {note}", style="dim", highlight=False, markup=False)
    if write and not quick and not only:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(figures, facts, sitting.notes))
        console.print(f"Written to {PAGE.relative_to(ROOT)}")
    raise typer.Exit(int(any(figure.failed for figure in figures)))


def prepare(directory: Path, peers: list[str]) -> Sitting:
    core, others = machine.split_cores()
    upstream = servers.upstream(directory, others)
    base = upstream.base
    return Sitting(
        upstream,
        servers.relay(directory, core, base),
        servers.outlive(directory, core, base),
        [servers.peer(text, directory, core, base) for text in peers],
    )


@contextmanager
def running(sitting: Sitting) -> Iterator[None]:
    """Start all servers, check that each streams the whole text, and pin this process to the core of the load."""
    every = [sitting.upstream, *sitting.all]
    try:
        for server in every:
            sitting.say(f"starting {server.name}")
            server.start()
            if server is not sitting.upstream:
                check(server)
        with machine.pinned(sitting.upstream.cores):
            yield
    finally:
        for server in every:
            server.stop()


if __name__ == "__main__":
    app()
