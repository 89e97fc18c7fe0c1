"""`make siege`: every attack on both databases while a victim streams; writes the results to docs/reliability.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.siege.attacker import ATTACKS
from tests.siege.siege import MAX_DELAY_SECONDS, MAX_MEMORY_MB, Outcome, besiege

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
DATABASES = ("sqlite", "postgres")
BEGIN, END = "<!-- written by make siege -->\n", "<!-- until here -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make siege", description=__doc__)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], help="names; all without any")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each attack")
    parser.add_argument("--database", choices=DATABASES, action="append")
    parser.add_argument("--no-write", action="store_true", help="leave the page as it is")
    given = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for attack in given.attacks or ATTACKS:
            for database in given.database or DATABASES:
                outcome = besiege(Path(folder) / f"{attack}-{database}", attack, database, given.seconds)
                faults += len(outcome.faults)
                print(_line(outcome), *outcome.faults[:3], flush=True)
                print(*outcome.steps, sep="\n", end="\n" if outcome.steps else "", file=sys.stderr)
                if not given.no_write:
                    _write(outcome, given.seconds)
    return int(faults > 0)


def _line(outcome: Outcome) -> str:
    figures = f"{outcome.delay:.2f} s | {outcome.memory:.0f} MB | {len(outcome.failed)} of {outcome.asked}"
    return f"| {outcome.attack.replace('_', ' ')} | {outcome.database} | {figures} |"


def _write(outcome: Outcome, seconds: float) -> None:
    """Put a line into the table of the page, in place of the last one of the same attack."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {_key(line): line for line in [*table.splitlines(), _line(outcome)] if line.startswith("| ")}
    order = [(name.replace("_", " "), database) for name in ATTACKS for database in DATABASES]
    kept = [lines[key] for key in order if key in lines]
    head = f"Last run: {time.strftime('%Y-%m-%d')}, {seconds:g} s of each attack. {_summarise(kept)}"
    head += f" {len(kept)} of {len(order)} lines were measured.\n\n"
    head += "| attack | database | longest delay | memory, at most | failed requests |\n|---|---|---|---|---|\n"
    PAGE.write_text(before + BEGIN + head + "\n".join(kept) + "\n" + END + after)


def _summarise(lines: list[str]) -> str:
    """Return the sentence that says which of these lines are above a bound."""
    above = []
    for line in lines:
        _, attack, database, delay, memory, failed, _ = (cell.strip() for cell in line.split("|"))
        is_late, is_large = float(delay.split()[0]) > MAX_DELAY_SECONDS, float(memory.split()[0]) > MAX_MEMORY_MB
        if is_late or is_large or not failed.startswith("0 "):
            above.append(f"{attack} ({database})")
    bounds = f"{MAX_DELAY_SECONDS:g} s and {MAX_MEMORY_MB} MB"
    return f"Above the bounds of {bounds}: {', '.join(above)}." if above else f"All are within {bounds}."


def _key(line: str) -> tuple[str, ...]:
    """Return the attack and the database of a line."""
    return tuple(cell.strip() for cell in line.split("|")[1:3])


if __name__ == "__main__":
    sys.exit(main())
