"""Writes the counts of the newest long run to docs/reliability.md."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.chaos.counts import Counts, describe

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
TAKEOVERS = "<!-- takeovers, written by make soak -->"
BEGIN, END = "<!-- written by make soak -->", "<!-- until here -->"


def write_page(runs: dict[str, Counts], seed: int) -> None:
    """Replace the page's table by one of these runs."""
    _replace(BEGIN, [f"Last run: {time.strftime('%Y-%m-%d')}, seed {seed}.", "", *_table(runs)])


def write_takeovers(takeovers: dict[float, list[float]], write: bool) -> list[str]:
    """Return a table of the times of takeovers by lease time, and replace the page's by it."""
    rows = ["| lease_seconds | kills | median | p90 | p99 | longest |", "|---|---|---|---|---|---|"]
    for lease, took in takeovers.items():
        ordered = sorted(took)
        cells = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.9, 0.99, 1.0)]
        rows.append(f"| {lease:g} | {len(took)} | " + " | ".join(f"{value:.1f} s" for value in cells) + " |")
    if write:
        _replace(TAKEOVERS, [f"Last run: {time.strftime('%Y-%m-%d')}.", "", *rows])
    return rows


def _replace(begin: str, lines: list[str]) -> None:
    """Replace what stands on the page between this mark and the next end."""
    table = "\n".join([begin, *lines, END])
    PAGE.write_text(re.sub(f"{begin}.*?{END}", lambda _: table, PAGE.read_text(), count=1, flags=re.DOTALL))


def _table(runs: dict[str, Counts]) -> list[str]:
    columns = [dict(describe(counts)) for counts in runs.values()]
    lines = [f"| | {' | '.join(runs)} |", "|---|" + "---|" * len(runs)]
    return [*lines, *(f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0])]
