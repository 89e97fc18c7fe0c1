"""Writes the counts of the newest long run to docs/reliability.md."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.chaos.counts import Counts, describe

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make soak -->", "<!-- until here -->"


def write_page(runs: dict[str, Counts], seed: int) -> None:
    """Replace the page's table by one of these runs."""
    text = PAGE.read_text()
    table = "\n".join([BEGIN, f"Last run: {time.strftime('%Y-%m-%d')}, seed {seed}.", "", *_table(runs), END])
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: table, text, flags=re.DOTALL))


def _table(runs: dict[str, Counts]) -> list[str]:
    columns = [dict(describe(counts)) for counts in runs.values()]
    lines = [f"| | {' | '.join(runs)} |", "|---|" + "---|" * len(runs)]
    return [*lines, *(f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0])]
