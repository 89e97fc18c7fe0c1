"""`outlive responses` and `outlive conversations`: list, show, tail, cancel and delete those of a running server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
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
    print_json,
    print_rows,
    show_time,
)
from outlive.core.events import Json
from outlive.core.grammar import TERMINAL_EVENTS

responses = typer.Typer(help="The responses of a running server.", no_args_is_help=True)
conversations = typer.Typer(help="The conversations of a running server.", no_args_is_help=True)

ResponseId = Annotated[str, typer.Argument(metavar="RESPONSE_ID")]
ConversationId = Annotated[str, typer.Argument(metavar="CONVERSATION_ID")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="How many.")]
OrderOption = Annotated[str | None, typer.Option("--order", help="desc (newest first) or asc.")]

# Temporary statuses: too many requests, and those of a restarting server or the proxy in front of it.
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING = frozenset(
    {"response.reasoning_text.delta", "response.reasoning.delta", "response.reasoning_summary_text.delta"}
)


# -- responses


@responses.command("list")
def list_responses(
    status: Annotated[
        list[str] | None, typer.Option("--status", help="Only with this status; may be repeated.")
    ] = None,
    conversation: Annotated[str | None, typer.Option("--conversation", help="Only of this conversation.")] = None,
    limit: LimitOption = 20,
    after: Annotated[str | None, typer.Option("--after", help="Begin after this response.")] = None,
    order: OrderOption = None,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """List responses, newest first."""
    given = [("conversation", conversation), ("after", after), ("order", order)]
    query = [("status", value) for value in status or []] + [(name, value) for name, value in given if value]
    found = ApiClient(server, key).pages("/v1/responses", query, limit)
    columns = ("ID", "STATUS", "MODEL", "CREATED", "TOKENS", "CONVERSATION", "WAITING")
    _print_list(found, columns, _describe_response, "There are no such responses.", as_json)


@responses.command("show")
def show_response(
    response_id: ResponseId, as_json: JsonFlag = False, server: ServerOption = DEFAULT_SERVER, key: KeyOption = None
) -> None:
    """Show one response; a running one with its output so far."""
    response = ApiClient(server, key).call("GET", f"/v1/responses/{segment(response_id)}")
    if as_json:
        print_json(response)
    else:
        _print_fields(_describe_response(response), response.get("output", []))


@responses.command()
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


@responses.command("delete")
def delete_response(
    response_id: ResponseId, as_json: JsonFlag = False, server: ServerOption = DEFAULT_SERVER, key: KeyOption = None
) -> None:
    """Delete a response; a running one is cancelled first."""
    _delete(ApiClient(server, key), "/v1/responses/", {"id": response_id, "object": "response"}, as_json)


def _describe_response(response: Json) -> dict[str, str]:
    usage, queue = response.get("usage"), (response.get("outlive") or {}).get("queue")
    fields = {
        "id": response.get("id"),
        "status": response.get("status"),
        "why": describe_fault(response),
        # Its place in the queue, if it waits for a worker, and for how long it has waited.
        "waiting": isinstance(queue, dict) and f"no. {queue.get('place')}, for {queue.get('seconds')} s",
        "model": response.get("model"),
        "created": show_time(response.get("created_at")),
        "conversation": (response.get("conversation") or {}).get("id"),
        "previous": response.get("previous_response_id"),
        "tokens": isinstance(usage, dict) and f"{usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out",
    }
    return {name: str(value or "") for name, value in fields.items()}


# -- conversations


@conversations.command("list")
def list_conversations(
    limit: LimitOption = 20,
    after: Annotated[str | None, typer.Option("--after", help="Begin after this conversation.")] = None,
    order: OrderOption = None,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """List conversations, newest first."""
    query = [(name, value) for name, value in [("after", after), ("order", order)] if value]
    found = ApiClient(server, key).pages("/v1/conversations", query, limit)
    columns = ("ID", "CREATED", "METADATA")
    _print_list(found, columns, _describe_conversation, "There are no conversations.", as_json)


@conversations.command("show")
def show_conversation(
    conversation_id: ConversationId,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of its newest items.")] = 100,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """Show a conversation and its items, oldest first."""
    asked = ApiClient(server, key)
    path = f"/v1/conversations/{segment(conversation_id)}"
    conversation = asked.call("GET", path)
    # The newest are fetched: the beginning of a long conversation is seldom needed.
    found = asked.pages(f"{path}/items", [("order", "desc")], limit)
    items = list(reversed(found["data"]))
    if as_json:
        print_json({**conversation, "items": items, "has_more": bool(found.get("has_more"))})
        return
    more = f"the newest {len(items)} items; there are more (--limit)" if found.get("has_more") else ""
    _print_fields(_describe_conversation(conversation) | {"shown": more}, items)


@conversations.command("delete")
def delete_conversation(
    conversation_id: ConversationId,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """Delete a conversation; its responses stay."""
    deleted: Json = {"id": conversation_id, "object": "conversation.deleted"}
    _delete(ApiClient(server, key), "/v1/conversations/", deleted, as_json)


def _describe_conversation(conversation: Json) -> dict[str, str]:
    metadata = ", ".join(f"{name}={value}" for name, value in (conversation.get("metadata") or {}).items())
    created = show_time(conversation.get("created_at"))
    return {"id": str(conversation.get("id", "")), "created": created, "metadata": metadata}


# -- both


def _print_list(
    found: Json, columns: Sequence[str], describe: Callable[[Json], dict[str, str]], empty: str, as_json: bool
) -> None:
    if as_json:
        print_json(found)
        return
    rows = [[fields[column.lower()] for column in columns] for fields in map(describe, found["data"])]
    print_rows(columns, rows, empty)


def _print_fields(fields: dict[str, str], items: list[Json]) -> None:
    for name, value in fields.items():
        if value:
            style = STATUS_STYLES.get(value, "") if name == "status" else ""
            console().print(Text(f"{name:<13}", style="dim") + Text(clean(value), style=style))
    for item in items:
        console().print(item_line(item))


def _delete(client: ApiClient, folder: str, deleted: Json, as_json: bool) -> None:
    answer = client.call("DELETE", folder + segment(deleted["id"]))
    if as_json:
        print_json(answer or deleted | {"deleted": True})
    else:
        console().print(f"{clean(deleted['id'])} is deleted")


# -- tail


@responses.command()
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
    view = _JsonLines() if as_json else _Screen() if sys.stdout.isatty() else _PlainText()
    ended: Json = {}
    with closing(view):
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

    def close(self) -> None:
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
        self._spin("connecting")

    def show(self, event: Json) -> None:
        kind = str(event.get("type"))
        if kind in ("response.created", "response.queued", "response.in_progress"):
            self._spin(str((event.get("response") or {}).get("status", "")).replace("_", " "))
            return
        self.close()
        self._mid_line = self._mid_line or kind in _REASONING or kind in _TEXT
        if kind in _REASONING:
            self._out.print(Text(clean(str(event.get("delta", ""))), style="dim italic"), end="")
        super().show(event)

    def end_item(self, item: Json) -> None:
        self._out.print(item_line(item) if item.get("type") not in ("message", "reasoning") else "")
        self._mid_line = False
        self._spin("in progress")

    def end(self, response: Json) -> None:
        self.close()
        self._out.print(Text(_describe_end(response), style=STATUS_STYLES.get(str(response.get("status")), "")))

    def show_break(self, notice: str) -> None:
        if not self._mid_line:
            self._spin(notice)
        elif not self._broken:
            # The spinner clears the line it is on, and this one has text.
            self._out.print(Text(" (cut, going on) ", style="dim"), end="")
        self._broken = True

    def _spin(self, words: str) -> None:
        self.close()
        self._spinner = self._out.status(Text(words, style="dim"))
        self._spinner.start()

    def close(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def _describe_end(response: Json) -> str:
    usage = response.get("usage") or {}
    tokens = f"{usage['output_tokens']} tokens" if "output_tokens" in usage else ""
    parts = (str(response.get("status", "")), describe_fault(response), tokens)
    return clean(" · ".join(part for part in parts if part))
