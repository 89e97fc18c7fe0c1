"""Findings of the doctor: one line each, and the settings to change."""

from __future__ import annotations

from typing import Literal

import msgspec
from rich.text import Text

from outlive.cli.terminal import clean, console
from outlive.core.events import Json

State = Literal["ok", "warn", "fail", "skip"]
_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "skip": ("-", "dim")}


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    state: State
    name: str
    detail: str


class Section(msgspec.Struct):
    """The findings about one subject, and the TOML keys to set."""

    title: str
    findings: list[Finding] = []
    set: Json = {}  # key -> the value it should have
    table: str = ""  # the TOML table that `set` belongs in

    def add(self, state: State, name: str, detail: str) -> None:
        self.findings.append(Finding(state, name, detail))

    @property
    def failed(self) -> bool:
        return any(finding.state == "fail" for finding in self.findings)


def print_section(section: Section) -> None:
    out = console()
    out.print(Text(section.title, style="bold"))
    for finding in section.findings:
        sign, style = _SIGNS[finding.state]
        out.print(Text(f"  {sign} ", style=style) + Text(f"{finding.name}: ") + Text(clean(finding.detail)))
    if section.set:
        out.print(Text("  Set in the TOML file:", style="yellow"))
        # JSON's true, false, numbers and strings are TOML's too.
        values = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in section.set.items()]
        lines = [f"[{section.table}]", *values]
        out.print("\n".join("    " + line for line in lines))
