"""Output of the commands: tables and colours on a terminal, plain lines in a pipe, JSON for scripts."""

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlive.core.events import Json

# All control characters but newline and tab: a model's text must not control the terminal that shows it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_STATUS_STYLES = {
    "completed": "green",
    "in_progress": "cyan",
    "queued": "blue",
    "incomplete": "yellow",
    "failed": "red",
    "cancelled": "magenta",
}


def console() -> Console:
    """Return standard output, which leaves wrapping to the terminal and truncates nothing."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def clean(text: str) -> str:
    return _CONTROL.sub("", text)


def styled(text: str, status: str | None = None) -> Text:
    """Return a text in the colour of a status, or of the status that it is itself."""
    return Text(clean(text), style=_STATUS_STYLES.get(status or text, ""))


def print_json(value: object) -> None:
    """Print one JSON value on one line, in UTF-8 whatever the locale."""
    typer.echo(msgspec.json.encode(value))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Print a table on a terminal, else lines with tabs, in which nothing is shortened."""
    lines = [[clean(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        typer.echo("\n".join("\t".join(line) for line in [columns, *lines]))
        return
    if not lines:
        console().print(Text(empty, style="dim"))
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    table.columns[0].no_wrap = True
    for line in lines:
        table.add_row(*map(styled, line))
    Console(highlight=False).print(table)


def show_time(seconds: object) -> str:
    """Return a Unix time as local date and time."""
    if not isinstance(seconds, int | float):
        return ""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def item_line(item: Json) -> Text:
    """Return one item as a line: its author or kind, and its content."""
    kind = str(item.get("type", "message"))
    if kind == "message":
        who, what = str(item.get("role", "")), _content_text(item.get("content"))
    elif kind in ("function_call", "custom_tool_call", "mcp_call", "mcp_approval_request"):
        who = "asks to call" if kind == "mcp_approval_request" else "calls"
        what = f"{item.get('name')}({item.get('arguments', item.get('input', ''))})"
        if item.get("output"):
            what += f" = {item['output']}"
    elif kind.endswith("_output"):
        who, what = "tool says", str(item.get("output", ""))
    elif kind == "reasoning":
        who, what = "thinks", _content_text(item.get("summary")) or _content_text(item.get("content"))
    else:
        who, what = kind, ""
    status = item.get("status")
    mark = f"  [{status}]" if status not in (None, "completed") else ""
    return Text(f"{clean(who)}: ", style="bold") + Text(clean(what)) + Text(clean(mark), style="yellow")


def describe_fault(response: Json) -> str:
    """Return the reason why a response did not complete."""
    error, details = response.get("error"), response.get("incomplete_details")
    if isinstance(error, dict):
        return str(error.get("message", ""))
    if isinstance(details, dict):
        return ": ".join(str(details[name]) for name in ("reason", "message") if details.get(name))
    return ""


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(str(part.get("text") or part.get("refusal") or f"[{part.get('type')}]") for part in parts)


# -- findings of the doctor

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

    def add(self, state: State, name: str, detail: str, **advice: object) -> None:
        """Add a finding; `advice` are keys and the values they should have."""
        self.findings.append(Finding(state, name, detail))
        self.set |= advice

    @property
    def failed(self) -> bool:
        return any(finding.state == "fail" for finding in self.findings)


def print_section(section: Section) -> None:
    out = console()
    out.print(Text(section.title, style="bold"))
    for finding in section.findings:
        sign, style = _SIGNS[finding.state]
        if not sign.isascii() and not out.encoding.startswith("utf"):
            sign = finding.state
        out.print(Text(f"  {sign} ", style=style) + Text(f"{finding.name}: ") + Text(clean(finding.detail)))
    if section.set:
        out.print(Text("  Set in the TOML file:", style="yellow"))
        # JSON's true, false, numbers and strings are TOML's too.
        values = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in section.set.items()]
        out.print("\n".join(f"    {line}" for line in [f"[{section.table}]", *values]))
