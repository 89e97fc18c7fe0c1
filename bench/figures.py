"""Figures of a measurement with their bounds and aims, printed in a terminal and as markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.table import Table

# unit -> how a value is written
_FORMATS = {"x": "{:.2f}x", "ms": "{:.2f} ms", "%": "{:.1f} %", "KB": "{:.0f} KB", "": "{:.0f}"}
_COLOURS = {"aim": "green", "holds": "yellow", "FAILS": "bold red", "no value": "bold red", "": ""}


def write(value: float, unit: str) -> str:
    return "-" if math.isnan(value) else _FORMATS[unit].format(value)


@dataclass
class Figure:
    """One line of the table. `apart` holds the values of each server that `value` was made from, and of peers."""

    load: str
    what: str
    unit: str
    value: float
    must: float | None = None
    aim: float | None = None
    at_least: bool = False
    apart: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.must is None:
            return ""
        if math.isnan(self.value):
            return "no value"
        # Judged as written, so that no page shows "1.10x" beside an aim of 1.1x that it missed.
        digits = {"x": 2, "ms": 2, "%": 1}.get(self.unit, 0)
        value, sign = round(self.value, digits), -1 if self.at_least else 1
        if self.aim is not None and sign * value <= sign * self.aim:
            return "aim"
        return "holds" if sign * value <= sign * self.must else "FAILS"

    @property
    def failed(self) -> bool:
        return self.verdict in ("FAILS", "no value")

    def bound(self, limit: float | None) -> str:
        if limit is None:
            return ""
        number = f"{limit:g}" + {"x": "x", "": ""}.get(self.unit, f" {self.unit}")
        return f"at least {number}" if self.at_least else number


def _names(figures: Iterable[Figure]) -> list[str]:
    """The servers that were measured, in the order in which they first appear."""
    return list(dict.fromkeys(name for figure in figures for name in figure.apart))


def table(figures: list[Figure], width: int) -> Table:
    servers = _names(figures) if width >= 120 else []  # a narrow terminal has room for the ratios only
    shown = Table(title="Outlive against a relay that keeps nothing", title_justify="left")
    for head in ("load", "what"):
        shown.add_column(head)
    for head in ("measured", "must", "aim"):
        shown.add_column(head, justify="right")
    shown.add_column("")
    for head in servers:
        shown.add_column(head, justify="right", style="dim")
    last = ""
    for figure in figures:
        if last and figure.load != last:
            shown.add_section()
        colour = _COLOURS[figure.verdict]
        verdict = f"[{colour}]{figure.verdict}[/]" if colour else ""
        row = ["" if figure.load == last else figure.load, figure.what, f"[bold]{write(figure.value, figure.unit)}[/]"]
        row += [figure.bound(figure.must), figure.bound(figure.aim), verdict]
        shown.add_row(*row, *(figure.apart.get(name, "") for name in servers))
        last = figure.load
    return shown


def markdown(figures: list[Figure]) -> str:
    servers = _names(figures)
    heads = ["load", "what", "measured", "must", "aim", "", *servers]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "--:|" * 3 + "---|" + "--:|" * len(servers)]
    for figure in figures:
        cells = [figure.load, figure.what, f"**{write(figure.value, figure.unit)}**"]
        cells += [figure.bound(figure.must), figure.bound(figure.aim), figure.verdict]
        cells += [figure.apart.get(name, "") for name in servers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
