"""Output of the demo: chapters, requests, the model's text as it arrives, and claims that hold or do not."""

from __future__ import annotations

import json
import re
import time

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from demo.client import Json

_LONG_ID = re.compile(r"\b(resp|conv)_\w{20,}(\w{6})\b")
# The same in every request, so shown last, where a line is truncated.
_SHOWN_LAST = ("max_output_tokens", "model")


class Stage:
    """Prints the demo, and counts the claims that hold and those that do not."""

    def __init__(self, console: Console, pauses: bool) -> None:
        self.console = console
        self.held = 0
        self.broken: list[str] = []
        self._pauses = pauses

    def chapter(self, number: int, title: str, complaint: str) -> None:
        self.pause(1.5)
        self.console.print()
        self.console.print(Rule(f"[bold]{number}. {escape(title)}", align="left", style="cyan"))
        self.console.print(f"[italic dim]The report: {escape(complaint)}[/]")
        self.pause(1.5)

    def note(self, text: str) -> None:
        self.console.print(f"\n[cyan]>[/] {escape(text)}")
        self.pause(0.8)

    def request(self, method: str, path: str, body: Json | None = None) -> None:
        body = body or {}
        shown = {name: body[name] for name in sorted(body, key=lambda name: name in _SHOWN_LAST)}
        line = shorten(f"{method} {path} {json.dumps(shown) if shown else ''}".strip())
        width = self.console.width - 8
        if len(line) > width:
            line = line[:width] + " ..."
        self.console.print(f"  [dim]{escape(line)}[/]", highlight=False)

    def show_text(self, delta: str, style: str = "white") -> None:
        """Print the model's text as it arrives."""
        self.console.print(delta, end="", style=style, markup=False, highlight=False, soft_wrap=True)

    def mark_break(self, label: str) -> None:
        self.console.print(f" [bold red]<< {escape(label)}[/]", highlight=False)
        self.pause(0.8)

    def claim(self, text: str, holds: bool, why: object = "") -> None:
        if holds:
            self.held += 1
            self.console.print(f"  [green]✓[/] {escape(shorten(text))}", highlight=False)
        else:
            self.broken.append(text)
            self.console.print(f"  [bold red]✗ {escape(text)}[/] [red]{escape(str(why))}[/]", highlight=False)
        self.pause(0.4)

    def pause(self, seconds: float) -> None:
        if self._pauses:
            time.sleep(seconds)


def shorten(text: str) -> str:
    """Shorten long ids to their ends, which differ."""
    return _LONG_ID.sub(r"\1_…\2", text)
