"""`make engines`: Outlive's own ledger beside procrastinate and DBOS, on one Postgres, as a table of docs/decisions."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
OTHERS = ROOT / "build" / "engines" / "bin" / "python"
PAGE = ROOT / "docs" / "decisions" / "engine.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
ROUNDS = 3

ENGINES = {"with_outlive.py": sys.executable, "with_procrastinate.py": str(OTHERS), "with_dbos.py": str(OTHERS)}
COLUMNS = {
    "runs_per_second": ("runs/s", "{:,.0f}"),
    "run_cpu_ms": ("CPU per run", "{:.2f} ms"),
    "start_ms": ("wait until claimed, p50", "{:,.0f} ms"),
    "events_per_second": ("durable events/s", "{:,.0f}"),
    "event_cpu_us": ("CPU per event", "{:,.0f} us"),
}

Result = dict[str, float | str]


def measure(script: str, url: str) -> Result:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")])}
    done = subprocess.run(
        [ENGINES[script], str(HERE / script), url], env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise SystemExit(f"{script} failed:\n{done.stderr}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.support.postgres import PostgresServer

    cluster = PostgresServer(durable=True).create()
    results: dict[str, list[Result]] = {script: [] for script in ENGINES}
    try:
        # In turns, so that what else the machine does falls on all of them alike.
        for number in range(ROUNDS):
            for script in ENGINES:
                database = f"{Path(script).stem}_{number}"
                cluster.sql(f"CREATE DATABASE {database}")
                results[script].append(measure(script, cluster.url(database)))
    finally:
        cluster.stop()
        cluster.remove()
    show([median(of) for of in results.values()])


def median(results: list[Result]) -> Result:
    middle: Result = {name: statistics.median(float(result[name]) for result in results) for name in COLUMNS}
    return middle | {"engine": results[0]["engine"]}


def show(rows: list[Result]) -> None:
    table = Table("engine", *(title for title, _ in COLUMNS.values()))
    cells = [[str(row["engine"]), *(form.format(row[name]) for name, (_, form) in COLUMNS.items())] for row in rows]
    for row in cells:
        table.add_row(*row)
    Console().print(table)
    lines = [f"| engine | {' | '.join(title for title, _ in COLUMNS.values())} |", "|---|" + "--:|" * len(COLUMNS)]
    lines += [f"| {' | '.join(row)} |" for row in cells]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after)


if __name__ == "__main__":
    main()
