"""`outlive responses tail`: follow a response to its end over any number of connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
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
from outlive.cli.terminal import (
    STATUS_STYLES,
    JsonFlag,
    clean,
    console,
    describe_fault,
    item_line,
    person_looks,
    print_json,
)
from outlive.core.events import TERMINAL_EVENTS, Json

# Temporary statuses: too many requests, and those of a restarting server or the proxy in front of it.
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING = frozenset(
    {"response.reasoning_text.delta", "response.reasoning.delta", "response.reasoning_summary_text.delta"}
)


def tail(
    response_id: Annotated[str, typer.Argument(metavar="RESPONSE_ID")],
    after: Annotated[int | None, typer.Option("--after", help="Begin after the event with this number.")] = None,
    patience: Annotated[
        float, typer.Option("--patience", help="Seconds to keep trying while no server answers.")
    ] = 300.0,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """Follow a response: print its text as it is generated. Exits with 1 if it failed or was cancelled."""
    view = _JsonLines() if as_json else _Screen() if person_looks() else _PlainText()
    ended: Json = {}
    with view:
        for event in follow(ApiClient(server, key), response_id, after, patience, view.show_break):
            view.show(event)
            ended = event.get("response") or {}
    if ended.get("status") in ("failed", "cancelled"):
        raise typer.Exit(1)


def follow(
    server: ApiClient,
    response_id: str,
    after: int | None,
    patience: float,
    on_break: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Json]:
    """Yield every event after `after` once, to the terminal one; reconnect after the last number seen."""
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
            if error.status not in _TEMPORARY:
                raise
            fault = ServerUnreachable(error.message)
        if time.monotonic() - alive > patience:
            raise fault
        place = "from the beginning" if last is None else f"after event {last}"
        on_break(f"{clean(fault.message)} Going on {place} ...")
        sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY)


class _PlainText:
    """The text alone on standard output, for pipes; notices go to standard error."""

    def __init__(self) -> None:
        self._broken = False  # True: this break was reported already

    def __enter__(self) -> _PlainText:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Json) -> None:
        kind = event.get("type")
        self._broken = False
        if kind in _TEXT:
            typer.echo(clean(str(event.get("delta", ""))), nl=False)
        elif kind == "response.output_item.done":
            self.end_item(event.get("item") or {})
        elif kind in TERMINAL_EVENTS:
            self.end(event.get("response") or {})

    def end_item(self, item: Json) -> None:
        if item.get("type") == "message":
            typer.echo()
        elif item.get("type") != "reasoning":
            typer.echo(item_line(item).plain)

    def end(self, response: Json) -> None:
        if response.get("status") != "completed":
            typer.echo(_describe_end(response), err=True)

    def show_break(self, notice: str) -> None:
        if not self._broken:
            typer.echo(f"outlive: {notice}", err=True)
        self._broken = True


class _JsonLines(_PlainText):
    """Every event as a line of JSON."""

    def show(self, event: Json) -> None:
        self._broken = False
        print_json(event)


class _Screen(_PlainText):
    """A terminal: a spinner while there is nothing to read, reasoning dimmed, the end with its number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._out = console()
        self._spinner: Status | None = None
        self._mid_line = False

    def __enter__(self) -> _Screen:
        self._spin("connecting")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_spinner()

    def show(self, event: Json) -> None:
        kind = str(event.get("type"))
        if kind in ("response.created", "response.queued", "response.in_progress"):
            self._spin(str((event.get("response") or {}).get("status", "")).replace("_", " "))
            return
        self._stop_spinner()
        self._mid_line = self._mid_line or kind in _REASONING or kind in _TEXT
        if kind in _REASONING:
            self._out.print(Text(clean(str(event.get("delta", ""))), style="dim italic"), end="")
        super().show(event)

    def end_item(self, item: Json) -> None:
        self._out.print(item_line(item) if item.get("type") not in ("message", "reasoning") else "")
        self._mid_line = False
        self._spin("in progress")

    def end(self, response: Json) -> None:
        self._stop_spinner()
        self._out.print(Text(_describe_end(response), style=STATUS_STYLES.get(str(response.get("status")), "")))

    def show_break(self, notice: str) -> None:
        if not self._mid_line:
            self._spin(notice)
        elif not self._broken:
            # The spinner clears the line it is on, and this one has text.
            self._out.print(Text(" (cut, going on) ", style="dim"), end="")
        self._broken = True

    def _spin(self, words: str) -> None:
        self._stop_spinner()
        self._spinner = self._out.status(Text(words, style="dim"))
        self._spinner.start()

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def _describe_end(response: Json) -> str:
    usage = response.get("usage") or {}
    tokens = f"{usage['output_tokens']} tokens" if "output_tokens" in usage else ""
    parts = (str(response.get("status", "")), describe_fault(response), tokens)
    return clean(" · ".join(part for part in parts if part))
