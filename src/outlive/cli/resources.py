"""`outlive responses`, `conversations` and `webhooks`: show and change those of a running server."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.status import Status
from rich.text import Text

from outlive.cli.client import ApiClient, RequestRefused, ServerUnreachable, segment
from outlive.cli.options import DATABASE, JSON, SERVER, Answer, Place, command, shared, use_database
from outlive.cli.terminal import clean, console, describe_fault, item_line, print_json, print_rows, show_time, styled
from outlive.clock import RandomIds, SystemClock
from outlive.core.errors import OutliveError
from outlive.core.events import Json
from outlive.core.grammar import TERMINAL_EVENTS
from outlive.ports.catalog import Page, Paging

if TYPE_CHECKING:
    from outlive.engine.webhooks import Webhooks

responses = typer.Typer(help="The responses of a running server.", no_args_is_help=True)
conversations = typer.Typer(help="The conversations of a running server.", no_args_is_help=True)
webhooks = typer.Typer(help="The webhook endpoints of a running server, or of a database.", no_args_is_help=True)

ResponseId = Annotated[str, typer.Argument(metavar="RESPONSE_ID")]
ConversationId = Annotated[str, typer.Argument(metavar="CONVERSATION_ID")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="How many.")]
OrderOption = Annotated[str | None, typer.Option("--order", help="desc (newest first) or asc.")]

# Temporary statuses: too many requests, and those of a restarting server or the proxy in front of it.
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})


# -- responses


@command(responses, "list")
def list_responses(
    server: ApiClient,
    status: Annotated[list[str] | None, typer.Option(help="Only with this status; may be repeated.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Only of this conversation.")] = None,
    limit: LimitOption = 20,
    after: Annotated[str | None, typer.Option(help="Begin after this response.")] = None,
    order: OrderOption = None,
) -> Answer:
    """List responses, newest first."""
    query = {"status": status, "conversation": conversation, "after": after, "order": order}
    found = server.pages("/v1/responses", query, limit)
    columns = ("ID", "STATUS", "MODEL", "CREATED", "TOKENS", "CONVERSATION", "WAITING")
    return _answer_list(found, columns, _describe_response, "There are no such responses.")


@command(responses, "show")
def show_response(server: ApiClient, response_id: ResponseId) -> Answer:
    """Show one response; a running one with its output so far."""
    response = server.call("GET", f"/v1/responses/{segment(response_id)}")
    return response, lambda: _print_fields(_describe_response(response), response.get("output", []))


@command(responses, "cancel")
def cancel(server: ApiClient, response_id: ResponseId) -> Answer:
    """Cancel a running response; its output so far is kept."""
    response = server.call("POST", f"/v1/responses/{segment(response_id)}/cancel")
    line = Text(f"{clean(response_id)} is ") + styled(str(response.get("status")))
    return response, lambda: console().print(line)


@command(responses, "delete")
def delete_response(server: ApiClient, response_id: ResponseId) -> Answer:
    """Delete a response; a running one is cancelled first."""
    return _delete(server, "/v1/responses/", {"id": response_id, "object": "response"})


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


@command(conversations, "list")
def list_conversations(
    server: ApiClient,
    limit: LimitOption = 20,
    after: Annotated[str | None, typer.Option(help="Begin after this conversation.")] = None,
    order: OrderOption = None,
) -> Answer:
    """List conversations, newest first."""
    found = server.pages("/v1/conversations", {"after": after, "order": order}, limit)
    columns = ("ID", "CREATED", "METADATA")
    return _answer_list(found, columns, _describe_conversation, "There are no conversations.")


@command(conversations, "show")
def show_conversation(
    server: ApiClient,
    conversation_id: ConversationId,
    limit: Annotated[int, typer.Option(min=1, help="How many of its newest items.")] = 100,
) -> Answer:
    """Show a conversation and its items, oldest first."""
    path = f"/v1/conversations/{segment(conversation_id)}"
    conversation = server.call("GET", path)
    # The newest are fetched: the beginning of a long conversation is seldom needed.
    found = server.pages(f"{path}/items", {"order": "desc"}, limit)
    items, has_more = list(reversed(found["data"])), bool(found.get("has_more"))
    shown = f"the newest {len(items)} items; there are more (--limit)" if has_more else ""
    fields = _describe_conversation(conversation) | {"shown": shown}
    return {**conversation, "items": items, "has_more": has_more}, lambda: _print_fields(fields, items)


@command(conversations, "delete")
def delete_conversation(server: ApiClient, conversation_id: ConversationId) -> Answer:
    """Delete a conversation; its responses stay."""
    return _delete(server, "/v1/conversations/", {"id": conversation_id, "object": "conversation.deleted"})


def _describe_conversation(conversation: Json) -> dict[str, str]:
    metadata = ", ".join(f"{name}={value}" for name, value in (conversation.get("metadata") or {}).items())
    created = show_time(conversation.get("created_at"))
    return {"id": str(conversation.get("id", "")), "created": created, "metadata": metadata}


# -- webhooks

_OWNER = typer.Option("--owner", help="With --database: the owner.")
_OPTIONS = (JSON, *SERVER, DATABASE, shared("owner", Annotated[str, _OWNER], "local"))


@command(webhooks, "list", *_OPTIONS)
def list_webhooks(place: Place, owner: str, limit: LimitOption = 20) -> Answer:
    """List webhook endpoints, newest first."""
    if isinstance(place, ApiClient):
        found = place.pages("/v1/webhook_endpoints", {}, limit)
    else:
        found = _ask(place, lambda hooks: hooks.list_endpoints(owner, Paging(None, limit)))
    columns = ("ID", "NAME", "URL", "STATUS", "CREATED")
    return _answer_list(found, columns, _describe_webhook, "There are no webhook endpoints.")


@command(webhooks, "deliveries", *_OPTIONS)
def list_deliveries(
    place: Place,
    owner: str,
    endpoint: Annotated[str, typer.Option(help="Only to this endpoint.")] = "",
    limit: LimitOption = 20,
) -> Answer:
    """List what was sent, and what is to be sent, newest first."""
    if isinstance(place, ApiClient):
        found = place.pages("/v1/webhook_deliveries", {"webhook_endpoint_id": endpoint}, limit)
    else:
        found = _ask(place, lambda hooks: hooks.list_deliveries(owner, endpoint, Paging(None, limit)))
    columns = ("ID", "STATUS", "EVENT", "RESPONSE", "CREATED", "ATTEMPTS", "LAST")
    return _answer_list(found, columns, _describe_webhook, "There are no deliveries.")


@command(webhooks, "redeliver", *_OPTIONS)
def redeliver(place: Place, owner: str, delivery_id: Annotated[str, typer.Argument(metavar="DELIVERY_ID")]) -> Answer:
    """Send a delivery once more, whatever became of it; with --database, a server sends it."""
    if isinstance(place, ApiClient):
        again = place.call("POST", f"/v1/webhook_deliveries/{segment(delivery_id)}/redeliver")
    else:
        again = _ask(place, lambda hooks: hooks.redeliver(owner, delivery_id))
    return again, lambda: console().print(f"{clean(delivery_id)} will be sent again")


def _ask(url: str, ask: Callable[["Webhooks"], Awaitable[Page | Json]]) -> Json:
    # The other commands start faster without these imports.
    from outlive.engine.webhooks import Webhooks
    from outlive.tooling.sender import HttpSender

    done = use_database(url, lambda opened: ask(Webhooks(opened, HttpSender(), None, SystemClock(), RandomIds(), "")))
    return {"object": "list", "data": done.data, "has_more": done.has_more} if isinstance(done, Page) else done


def _describe_webhook(shown: Json) -> dict[str, str]:
    """Return the columns of an endpoint or a delivery, which have names of their own."""
    attempts = shown.get("attempts") or []
    last = attempts[-1] if attempts else {}
    fields = {
        **{name: shown.get(name) for name in ("id", "name", "url", "status")},
        "event": shown.get("event_type"),
        "response": shown.get("response_id"),
        "created": show_time(shown.get("created_at")),
        "attempts": len(attempts),
        "last": f"{last.get('status_code') or ''} {last.get('reason', '')}".strip(),
    }
    return {name: str(value) for name, value in fields.items()}


# -- all of them


def _answer_list(found: Json, columns: Sequence[str], describe: Callable[[Json], dict[str, str]], empty: str) -> Answer:
    described = map(describe, found["data"])
    rows = ([fields[column.lower()] for column in columns] for fields in described)
    return found, lambda: print_rows(columns, rows, empty)


def _print_fields(fields: dict[str, str], items: list[Json]) -> None:
    for name, value in fields.items():
        if value:
            shown = styled(value) if name == "status" else Text(clean(value))
            console().print(Text(f"{name:<13}", style="dim") + shown)
    for item in items:
        console().print(item_line(item))


def _delete(server: ApiClient, folder: str, deleted: Json) -> Answer:
    answer = server.call("DELETE", folder + segment(deleted["id"])) or deleted | {"deleted": True}
    return answer, lambda: console().print(f"{clean(deleted['id'])} is deleted")


# -- tail


@command(responses, "tail")
def tail(
    server: ApiClient,
    response_id: ResponseId,
    as_json: bool,
    after: Annotated[int | None, typer.Option(help="Begin after the event with this number.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to keep trying while no server answers.")] = 300.0,
) -> None:
    """Follow a response: print its text as it is generated. Exits with 1 if it failed or was cancelled."""
    view = _Screen() if sys.stdout.isatty() and not as_json else _PlainText()
    show = print_json if as_json else view.show
    ended: Json = {}
    with closing(view):
        for event in follow(server, response_id, after, timeout, view.show_break):
            show(event)
            ended = event.get("response") or {}
    if ended.get("status") in ("failed", "cancelled"):
        raise typer.Exit(1)


def follow(
    server: ApiClient,
    response_id: str,
    after: int | None,
    timeout: float,
    on_break: Callable[[str, bool], None],  # True: the first since there was an event
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Json]:
    """Yield every event after `after` once, to the terminal one; reconnect after the last number seen."""
    last, delay, alive = after, _FIRST_DELAY, time.monotonic()
    while True:
        query = {"stream": "true", "starting_after": last}
        try:
            for event in server.events(f"/v1/responses/{segment(response_id)}", query):
                number = event.get("sequence_number")
                if not isinstance(number, int) or (last is not None and number <= last):
                    continue
                last, delay, alive = number, _FIRST_DELAY, time.monotonic()
                yield event
                if event.get("type") in TERMINAL_EVENTS:
                    return
            fault: OutliveError = ServerUnreachable("The stream ended before the response did.")
        except (ServerUnreachable, RequestRefused) as error:
            if isinstance(error, RequestRefused) and error.status not in _TEMPORARY:
                raise
            fault = error
        if time.monotonic() - alive > timeout:
            raise fault
        place = "from the beginning" if last is None else f"after event {last}"
        on_break(f"{clean(fault.message)} Going on {place} ...", delay == _FIRST_DELAY)
        sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY)


class _PlainText:
    """The text alone on standard output, for pipes; notices go to standard error."""

    def close(self) -> None:
        pass

    def show(self, event: Json) -> None:
        kind = event.get("type")
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

    def show_break(self, notice: str, first: bool) -> None:
        if first:
            typer.echo(f"outlive: {notice}", err=True)


class _Screen(_PlainText):
    """A terminal: a spinner while there is nothing to read, reasoning dimmed, the end with its number of tokens."""

    def __init__(self) -> None:
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
        is_reasoning = kind.startswith("response.reasoning") and kind.endswith(".delta")
        self._mid_line = self._mid_line or is_reasoning or kind in _TEXT
        if is_reasoning:
            self._out.print(Text(clean(str(event.get("delta", ""))), style="dim italic"), end="")
        super().show(event)

    def end_item(self, item: Json) -> None:
        self._out.print(item_line(item) if item.get("type") not in ("message", "reasoning") else "")
        self._mid_line = False
        self._spin("in progress")

    def end(self, response: Json) -> None:
        self.close()
        self._out.print(styled(_describe_end(response), str(response.get("status"))))

    def show_break(self, notice: str, first: bool) -> None:
        if not self._mid_line:
            self._spin(notice)
        elif first:
            # The spinner clears the line it is on, and this one has text.
            self._out.print(Text(" (cut, going on) ", style="dim"), end="")

    def _spin(self, words: str) -> None:
        self.close()
        self._spinner = self._out.status(Text(words, style="dim"))
        self._spinner.start()

    def close(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()


def _describe_end(response: Json) -> str:
    usage = response.get("usage") or {}
    tokens = f"{usage['output_tokens']} tokens" if "output_tokens" in usage else ""
    parts = (str(response.get("status", "")), describe_fault(response), tokens)
    return clean(" · ".join(part for part in parts if part))
