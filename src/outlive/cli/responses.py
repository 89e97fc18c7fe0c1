"""`outlive responses`: list, show, tail, cancel and delete the responses of a running server."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from outlive.cli.client import DEFAULT_SERVER, ApiClient, KeyOption, ServerOption, segment
from outlive.cli.tail import tail
from outlive.cli.terminal import (
    STATUS_STYLES,
    JsonFlag,
    clean,
    console,
    describe_fault,
    item_line,
    print_field,
    print_json,
    print_rows,
    show_time,
)
from outlive.core.events import Json

app = typer.Typer(help="The responses of a running server.", no_args_is_help=True)

ResponseId = Annotated[str, typer.Argument(metavar="RESPONSE_ID")]


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


app.command()(tail)


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
