"""`outlive responses`: list, show, tail, cancel and delete the responses of a running server."""

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
    print_field,
    print_json,
    print_rows,
    show_time,
)
from outlive.core.events import Json
from outlive.core.grammar import TERMINAL_EVENTS

app = typer.Typer(help="The responses of a running server.", no_args_is_help=True)

ResponseId = Annotated[str, typer.Argument(metavar="RESPONSE_ID")]

# Temporary statuses: too many requests, and those of a restarting server or the proxy in front of it.
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING = frozenset(
    {"response.reasoning_text.delta", "response.reasoning.delta", "response.reasoning_summary_text.delta"}
)


@app.command("list")
def list_responses(
    status: Annotated[
        list[str] | None, typer.Option("--status", help="Only with this status; may be repeated.")
    ] = None,
    conversation: Annotated[str | None, typer.Option("--conversation", help="Only of this conversation.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many.")] = 20,
    after: Annotated[str | None, typer.Option("--after", help="Begin after this response.")] = None,
    order: Annotated[str | None, typer.Option("--order", help="desc (newest first) or asc.")] = None,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """List responses, newest first."""
    given = [("conversation", conversation), ("after", after), ("order", order)]
    query = [("status", value) for value in status or []] + [(name, value) for name, value in given if value]
    found = ApiClient(server, key).pages("/v1/responses", query, limit)
    if as_json:
        print_json(found)
        return
    columns = ("ID", "STATUS", "MODEL", "CREATED", "TOKENS", "CONVERSATION", "WAITING")
    print_rows(columns, [_row(response) for response in found["data"]], "There are no such responses.")


@app.command()
def show(
    response_id: ResponseId, as_json: JsonFlag = False, server: ServerOption = DEFAULT_SERVER, key: KeyOption = None
) -> None:
    """Show one response; a running one with its output so far."""
    response = ApiClient(server, key).call("GET", f"/v1/responses/{segment(response_id)}")
    if as_json:
        print_json(response)
        return
    print_response(response)


@app.command()
def cancel(
    response_id: ResponseId, as_json: JsonFlag = False, server: ServerOption = DEFAULT_SERVER, key: KeyOption = None
) -> None:
    """Cancel a running response; its output so far is kept."""
    response = ApiClient(server, key).call("POST", f"/v1/responses/{segment(response_id)}/cancel")
    if as_json:
        print_json(response)
        return
    status = str(response.get("status"))
    console().print(Text(f"{clean(response_id)} is ") + Text(clean(status), style=STATUS_STYLES.get(status, "")))


@app.command()
def delete(
    response_id: ResponseId, as_json: JsonFlag = False, server: ServerOption = DEFAULT_SERVER, key: KeyOption = None
) -> None:
    """Delete a response; a running one is cancelled first."""
    answer = ApiClient(server, key).call("DELETE", f"/v1/responses/{segment(response_id)}")
    if as_json:
        print_json(answer or {"id": response_id, "object": "response", "deleted": True})
        return
    console().print(f"{clean(response_id)} is deleted")


def print_response(response: Json) -> None:
    status = str(response.get("status", ""))
    print_field("id", response.get("id"))
    print_field("status", status, STATUS_STYLES.get(status, ""))
    print_field("why", describe_fault(response))
    print_field("waiting", _waiting(response))
    print_field("model", response.get("model"))
    print_field("created", show_time(response.get("created_at")))
    print_field("conversation", (response.get("conversation") or {}).get("id"))
    print_field("previous", response.get("previous_response_id"))
    print_field("tokens", _tokens(response))
    for item in response.get("output", []):
        console().print(item_line(item))


def _row(response: Json) -> tuple[str, ...]:
    return (
        str(response.get("id", "")),
        str(response.get("status", "")),
        str(response.get("model", "")),
        show_time(response.get("created_at")),
        _tokens(response),
        str((response.get("conversation") or {}).get("id", "")),
        _waiting(response),
    )


def _waiting(response: Json) -> str:
    """Return the place in the queue of a response that waits for a worker, and for how long it has waited."""
    queue = (response.get("outlive") or {}).get("queue")
    return f"no. {queue.get('place')}, for {queue.get('seconds')} s" if isinstance(queue, dict) else ""


def _tokens(response: Json) -> str:
    usage = response.get("usage")
    return f"{usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out" if isinstance(usage, dict) else ""


# -- tail


@app.command()
def tail(
    response_id: ResponseId,
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
