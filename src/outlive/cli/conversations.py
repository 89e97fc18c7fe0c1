"""`outlive conversations`: list, show and delete the conversations of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.cli.client import DEFAULT_SERVER, ApiClient, KeyOption, ServerOption, segment
from outlive.cli.terminal import JsonFlag, clean, console, item_line, print_field, print_json, print_rows, show_time
from outlive.core.events import Json

app = typer.Typer(help="The conversations of a running server.", no_args_is_help=True)

ConversationId = Annotated[str, typer.Argument(metavar="CONVERSATION_ID")]


@app.command("list")
def list_conversations(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many.")] = 20,
    after: Annotated[str | None, typer.Option("--after", help="Begin after this conversation.")] = None,
    order: Annotated[str | None, typer.Option("--order", help="desc (newest first) or asc.")] = None,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """List conversations, newest first."""
    query = [(name, value) for name, value in [("after", after), ("order", order)] if value]
    found = ApiClient(server, key).pages("/v1/conversations", query, limit)
    if as_json:
        print_json(found)
        return
    rows = [(str(one.get("id", "")), show_time(one.get("created_at")), _metadata(one)) for one in found["data"]]
    print_rows(("ID", "CREATED", "METADATA"), rows, "There are no conversations.")


@app.command()
def show(
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
    print_field("id", conversation.get("id"))
    print_field("created", show_time(conversation.get("created_at")))
    print_field("metadata", _metadata(conversation))
    if found.get("has_more"):
        print_field("shown", f"the newest {len(items)} items; there are more (--limit)")
    for item in items:
        console().print(item_line(item))


@app.command()
def delete(
    conversation_id: ConversationId,
    as_json: JsonFlag = False,
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = None,
) -> None:
    """Delete a conversation; its responses stay."""
    answer = ApiClient(server, key).call("DELETE", f"/v1/conversations/{segment(conversation_id)}")
    if as_json:
        print_json(answer or {"id": conversation_id, "object": "conversation.deleted", "deleted": True})
        return
    console().print(f"{clean(conversation_id)} is deleted")


def _metadata(conversation: Json) -> str:
    metadata = conversation.get("metadata")
    return ", ".join(f"{name}={value}" for name, value in metadata.items()) if isinstance(metadata, dict) else ""
