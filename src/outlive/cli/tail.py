"""`outlive responses tail`: follow a response to its end, however often the connection is cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from outlive.cli.client import (
    DEFAULT_SERVER,
    ApiClient,
    KeyOption,
    RequestRefused,
    ServerOption,
    ServerUnreachable,
    segment,
)
from outlive.cli.terminal import STATUS_STYLES, JsonFlag, clean, item_line, person_looks, print_json
from outlive.core.events import TERMINAL_EVENTS, Json

# Statuses that pass: too many requests, and whatever a restarting server or the proxy before it says.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THOUGHT = frozenset(
    {"response.reasoning_text.delta", "response.reasoning.delta", "response.reasoning_summary_text.delta"}
)


def tail(
    response_id: Annotated[str, typer.Argument(metavar="RESPONSE_ID")],
    after: Annotated[int | None, typer.Option("--after", help="Begin after the event with this number.")] = None,
    patience: Annotated[
        float, typer.Option("--patience", help="Seconds to go on trying while nobody answers.")
    ] = 300.0,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """Follow a response: its text as it grows, to its end. Ends with 1 if it failed or was cancelled."""
    view = _Lines() if as_json else _Screen() if person_looks() else _Plain()
    with view:
        for event in follow(ApiClient(server, key), response_id, after, patience, view.cut):
            view.show(event)
    if view.status in ("failed", "cancelled"):
        raise typer.Exit(1)


def follow(
    server: ApiClient,
    response_id: str,
    after: int | None,
    patience: float,
    on_cut: Callable[[int | None, str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Json]:
    """Every event after `after`, each once, to the terminal one; reconnects with the last number it has seen."""
    last, delay, alive = after, _FIRST_DELAY, time.monotonic()
    while True:
        query = [("stream", "true")] + ([("starting_after", str(last))] if last is not None else [])
        try:
            for event in server.events(f"/v1/responses/{segment(response_id)}", query):
                number = event.get("sequence_number")
                if not isinstance(number, int) or (last is not None and number <= last):
                    continue
                last, delay, alive = number, _FIRST_DELAY, time.monotonic()
                yield event
                if event.get("type") in TERMINAL_EVENTS:
                    return
            fault = ServerUnreachable("The stream ended before the response did.")
        except ServerUnreachable as error:
            fault = error
        except RequestRefused as error:
            if error.status not in _PASSING:
                raise
            fault = ServerUnreachable(error.message)
        if time.monotonic() - alive > patience:
            raise fault
        on_cut(last, fault.message)
        sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY)


class _Plain:
    """The text alone on standard output, for pipes; notices go to standard error."""

    def __init__(self) -> None:
        self.status = ""
        self._told = False

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Json) -> None:
        kind = event.get("type")
        self._told = False
        if kind in _TEXT:
            typer.echo(clean(str(event.get("delta", ""))), nl=False)
        elif kind == "response.output_item.done":
            self.end_item(event.get("item") or {})
        elif kind in TERMINAL_EVENTS:
            self.status = str((event.get("response") or {}).get("status", ""))
            self.end(event.get("response") or {})

    def end_item(self, item: Json) -> None:
        if item.get("type") == "message":
            typer.echo()
        elif item.get("type") != "reasoning":
            typer.echo(item_line(item).plain)

    def end(self, response: Json) -> None:
        if self.status != "completed":
            typer.echo(_ending(response), err=True)

    def cut(self, last: int | None, reason: str) -> None:
        if not self._told:
            typer.echo(f"outlive: {clean(reason)} Going on {_place(last)} ...", err=True)
        self._told = True


class _Lines(_Plain):
    """Every event as a line of JSON."""

    def show(self, event: Json) -> None:
        self._told = False
        if event.get("type") in TERMINAL_EVENTS:
            self.status = str((event.get("response") or {}).get("status", ""))
        print_json(event)


class _Screen(_Plain):
    """A terminal: a sign of life while there is nothing to read, thoughts dimmed, the ending with its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._out = Console(highlight=False, markup=False, soft_wrap=True)
        self._waiting: Status | None = None
        self._mid_line = False

    def __enter__(self) -> _Screen:
        self._wait("connecting")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_waiting()

    def show(self, event: Json) -> None:
        kind = str(event.get("type"))
        if kind in ("response.created", "response.queued", "response.in_progress"):
            self._wait(str((event.get("response") or {}).get("status", "")).replace("_", " "))
            return
        self._stop_waiting()
        self._mid_line = self._mid_line or kind in _THOUGHT or kind in _TEXT
        if kind in _THOUGHT:
            self._out.print(Text(clean(str(event.get("delta", ""))), style="dim italic"), end="")
        super().show(event)

    def end_item(self, item: Json) -> None:
        if item.get("type") in ("message", "reasoning"):
            self._out.print()
        else:
            self._out.print(item_line(item))
        self._mid_line = False
        self._wait("in progress")

    def end(self, response: Json) -> None:
        self._stop_waiting()
        self._out.print(Text(_ending(response), style=STATUS_STYLES.get(self.status, "")))

    def cut(self, last: int | None, reason: str) -> None:
        if not self._mid_line:
            self._wait(f"{clean(reason)} Going on {_place(last)} ...")
        elif not self._told:
            # The sign of life wipes the line it stands on, and this one holds text.
            self._out.print(Text(" (cut, going on) ", style="dim"), end="")
        self._told = True

    def _wait(self, words: str) -> None:
        self._stop_waiting()
        self._waiting = self._out.status(Text(words, style="dim"))
        self._waiting.start()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None


def _place(last: int | None) -> str:
    return "from the beginning" if last is None else f"after event {last}"


def _ending(response: Json) -> str:
    details = response.get("error") or response.get("incomplete_details") or {}
    why = details.get("message") or details.get("reason") or ""
    usage = response.get("usage") or {}
    tokens = f"{usage['output_tokens']} tokens" if "output_tokens" in usage else ""
    return clean(" · ".join(part for part in (str(response.get("status", "")), str(why), tokens) if part))
