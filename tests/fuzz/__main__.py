"""`make fuzz`: a long campaign on both databases, another every time, until enough was tried or an error is found.

Writes the results to docs/reliability.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.campaign import Tally
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer

PART_SECONDS = 30
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make fuzz -->\n", "<!-- until here -->"

Run = Callable[[OutliveServer, int], Tally]
PARTS: dict[str, Run] = {
    "schemathesis, coverage": lambda server, number: campaign.run_document(
        server, PART_SECONDS, "coverage", number=number
    ),
    "schemathesis, fuzzing": lambda server, number: campaign.run_document(
        server, PART_SECONDS, "fuzzing", "stateful", number=number
    ),
    "bodies and items": lambda server, number: campaign.run_bodies(server, PART_SECONDS, number=number),
    "items of any content": lambda server, number: campaign.run_items(server, PART_SECONDS, number=number),
    "frames on a WebSocket": lambda server, number: campaign.run_frames(server, PART_SECONDS, number=number),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None, help="what a run before this one printed")
    parser.add_argument("--add", action="store_true", help="to the results on the page, instead of replacing them")
    given = parser.parse_args()
    sums = _read() if given.add else {}
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}, {given.cases} cases")
    tried = found = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            campaign.start_server(folder / "sqlite") as on_sqlite,
            campaign.start_server(folder / "postgres", DATABASES.create()) as on_postgres,
        ):
            while tried < given.cases and not found:
                for database, server in (("SQLite", on_sqlite), ("Postgres", on_postgres)):
                    for part, run in PARTS.items():
                        tally = run(server, seed)
                        print(f"{part} on {database}: {tally}", *tally.found, sep="\n", flush=True)
                        tried, found = tried + tally.tried, found + len(tally.found)
                        _add(sums, part, database, tally)
                seed += 1
    print(f"{tried} cases tried, {found} found wrong")
    _write(sums)
    return 1 if found else 0


# -- the page: for each part and database the cases, those with an answer of 5xx, hangs, and what else was found wrong

Sums = dict[tuple[str, str], list[int]]


def _add(sums: Sums, part: str, database: str, tally: Tally) -> None:
    failed = sum(count for status, count in tally.statuses.items() if isinstance(status, int) and status >= 500)
    row = sums.setdefault((part, database), [0, 0, 0, 0])
    for column, count in enumerate((tally.tried, failed, tally.statuses["hang"], len(tally.found))):
        row[column] += count


def _read() -> Sums:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    return {(row[0], row[1]): [int(cell.replace(",", "")) for cell in row[2:]] for row in rows if row[2][0].isdigit()}


def _write(sums: Sums) -> None:
    total = sum(row[0] for row in sums.values())
    text = f"Last run: {time.strftime('%Y-%m-%d')}, {total:,} cases.\n\n"
    text += "| requests by | database | cases | answered with 5xx | hangs | other faults |\n|---|---|---|---|---|---|\n"
    for (part, database), row in sums.items():
        text += f"| {part} | {database} | {' | '.join(f'{count:,}' for count in row)} |\n"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())
