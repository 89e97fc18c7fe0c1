"""`make siege`: every attack on both databases while a victim streams; writes the results to docs/reliability.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.siege.attacks import ATTACKS
from tests.siege.siege import MAX_DELAY_SECONDS, MAX_MEMORY_MB, Outcome, besiege

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make siege -->\n", "<!-- until here -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make siege", description=__doc__)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], help="names; all without any")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for attack in given.attacks or ATTACKS:
            for database in given.database or ("sqlite", "postgres"):
                outcome = besiege(Path(folder) / f"{attack}-{database}", attack, database, given.seconds)
                outcomes.append(outcome)
                print(_line(outcome), *outcome.faults[:3], flush=True)
    if not given.attacks and not given.database:
        _write(outcomes)
    return int(any(outcome.faults for outcome in outcomes))


def _line(outcome: Outcome) -> str:
    figures = f"{outcome.delay:.2f} s | {outcome.memory:.0f} MB | {len(outcome.failed)} of {outcome.asked}"
    return f"| {outcome.attack.replace('_', ' ')} | {outcome.database} | {figures} |"


def _write(outcomes: list[Outcome]) -> None:
    """Put the table into the page."""
    head = f"Last run: {time.strftime('%Y-%m-%d')}. Bounds: {MAX_DELAY_SECONDS:g} s and {MAX_MEMORY_MB} MB.\n\n"
    head += "| attack | database | longest delay | memory, at most | failed requests |\n|---|---|---|---|---|\n"
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + head + "\n".join(map(_line, outcomes)) + "\n" + END + after)


if __name__ == "__main__":
    sys.exit(main())
