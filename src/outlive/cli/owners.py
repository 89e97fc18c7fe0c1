"""`outlive keys`, `audit`, `usage` and `owners`: who may do what, and what was used, in a database or on a server."""

import csv
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from outlive.cli.client import ApiClient, segment
from outlive.cli.options import DATABASE, JSON, SERVER, Answer, JsonFlag, Place, command, shared, use_database
from outlive.cli.terminal import clean, console, print_json, print_rows, show_time
from outlive.clock import RandomIds, SystemClock
from outlive.config.load import load, make_policy, make_prices
from outlive.core.errors import SettingsError, require
from outlive.core.events import Json
from outlive.engine.keys import Keys
from outlive.engine.usage import GROUPS, UsageMeter, read_time
from outlive.ports.database import Statements
from outlive.storage.owners import SqlOwner

keys = typer.Typer(help="The keys that are kept in the database.", no_args_is_help=True)
owners = typer.Typer(help="What owners may do, and all that is kept of one, in a database.", no_args_is_help=True)

ACTOR = "the command line"
_COLUMNS = (
    *("responses", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "estimated_input_tokens"),
    *("estimated_output_tokens", "attempts", "tool_calls", "cost", "currency", "unpriced_models"),
)
_SHOWN = ("responses", "input_tokens", "output_tokens", "cost", "currency")
_PAGE, _MOST_ROWS = 10_000, 1_000_000
# The characters with which a formula begins in spreadsheets, as OWASP lists them.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

OwnerName = Annotated[str, typer.Argument(metavar="NAME")]
DatabaseUrl = Annotated[str, typer.Option("--database", help="sqlite:///FILE or postgresql://...")]
EndUserOption = Annotated[str | None, typer.Option("--end-user", help="Of this end user only.")]
CSV = shared("as_csv", Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")], False)
_OPTIONS = (DATABASE, JSON, *SERVER)

# -- keys


@command(keys, "new", *_OPTIONS)
def new(
    place: Place,
    owner: Annotated[str, typer.Option(help="The owner's name.")],
    role: Annotated[str, typer.Option(help="user, read (GET only) or admin.")] = "user",
    expires: Annotated[float | None, typer.Option(metavar="DAYS", help="Days until it expires.")] = None,
    acts_for: Annotated[bool, typer.Option("--acts-for", help="Its requests may name an end user.")] = False,
) -> Answer:
    """Make a key and print it. It is shown only here; the database has its hash."""

    def create(keys: Keys) -> Awaitable[Json]:
        return keys.create(ACTOR, owner, role, expires, acts_for)  # type: ignore[arg-type]

    def show() -> None:
        of = f"{made['id']} of {made['owner']}, role {made['role']}"
        typer.echo(f"{of}; keep the key, it is not shown again:", err=True)
        typer.echo(made["key"])

    body = {"owner": owner, "role": role, "acts_for": acts_for, "expires_in_days": expires}
    made = _ask(place, create, "POST", "/v1/keys", body=body)
    return made, show


@command(keys, "list", *_OPTIONS)
def list_keys(place: Place) -> Answer:
    """List keys, oldest first, without the keys themselves."""

    def describe(key: Json) -> list[str]:
        times = [show_time(key[at]) for at in ("created_at", "last_used_at", "expires_at", "revoked_at")]
        return [key["id"], key["owner"], key["role"] + ", acts for" * key["acts_for"], *times]

    found = _ask(place, Keys.find_all, "GET", "/v1/keys")
    columns = ("ID", "OWNER", "ROLE", "CREATED", "LAST USED", "EXPIRES", "REVOKED")
    return found, lambda: print_rows(columns, map(describe, found["data"]), "There are no keys in the database.")


@command(keys, "revoke", *_OPTIONS)
def revoke(place: Place, key_id: Annotated[str, typer.Argument(metavar="KEY_ID")]) -> Answer:
    """Revoke a key: within a second every node refuses it, and cuts the streams that it has open."""
    revoked = _ask(place, lambda keys: keys.revoke(ACTOR, key_id), "DELETE", "/v1/keys", key_id)
    return revoked, lambda: console().print(f"{clean(key_id)} is revoked")


@command(None, "audit", *_OPTIONS)
def audit(place: Place, limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20) -> Answer:
    """List the changes of keys and owners, newest first."""

    def describe(entry: Json) -> list[str]:
        return [show_time(entry["at"]), *(entry[name] for name in ("actor", "action", "subject", "detail"))]

    found = _ask(place, lambda keys: keys.list_audit(limit), "GET", "/v1/audit", query={"limit": limit})
    columns = ("TIME", "ACTOR", "ACTION", "SUBJECT", "DETAIL")
    return found, lambda: print_rows(columns, map(describe, found["data"]), "Nothing was changed yet.")


def _ask(
    place: Place, work: Callable[[Keys], Awaitable[Any]], method: str, path: str, *ids: str, **request: Any
) -> Json:
    """Send a request to a server, or do the same work on the keys in a database."""
    if isinstance(place, ApiClient):
        return place.call(method, "/".join([path, *map(segment, ids)]), **request)
    done = use_database(place, lambda opened: work(Keys(opened, SystemClock(), RandomIds())), create=method == "POST")
    return {"object": "list", "data": done} if isinstance(done, list) else done


# -- usage


@command(None, "usage", JSON, CSV, DATABASE, *SERVER)
def usage(
    place: Place,
    by: Annotated[str, typer.Option(help="Sum up by some of owner, end_user, model, day.")] = "",
    start: Annotated[str, typer.Option(help="The first day, or a Unix time.", metavar="DAY")] = "",
    end: Annotated[str, typer.Option(help="The day or the Unix time to end before.", metavar="DAY")] = "",
    as_csv: bool = False,
) -> Answer:
    """Sum up what responses used, and what that costs: yours, or with an admin's key or --database of all owners."""

    def show() -> None:
        names = [*columns, *(_COLUMNS if as_csv else _SHOWN)]
        if as_csv:
            csv.writer(sys.stdout).writerows([names, *([_to_cell(row[name]) for name in names] for row in data)])
            sys.stdout.flush()  # here, so that an error is reported
        else:
            rows = [[_show(row[name]) for name in names] for row in data]
            print_rows([name.upper() for name in names], rows, "There is no usage.")

    columns = [name for name in by.split(",") if name]
    if isinstance(place, ApiClient):
        query = {"group_by": by, "start": start, "end": end}
        data = place.pages("/v1/usage", query, _MOST_ROWS, _PAGE)["data"]
    else:
        if unknown := [name for name in columns if name not in GROUPS]:
            raise SettingsError(f"--by must be some of {', '.join(GROUPS)}, not {unknown[0]!r}.")
        times = read_time(start, "--start", 0.0), read_time(end, "--end", 1e12)
        prices = make_prices(load({"database": place}))
        data = use_database(place, lambda opened: UsageMeter(opened, prices).report(columns, *times))
    return {"object": "list", "data": data}, show


def _show(value: object) -> str:
    return "" if value is None else " ".join(value) if isinstance(value, list) else str(value)


def _to_cell(value: object) -> str:
    """Show a value in CSV. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = _show(value)
    return f"'{text}" if isinstance(value, str | list) and text.startswith(_FORMULA) else text


# -- owners


@owners.command("list")
def list_policies(database: DatabaseUrl, as_json: JsonFlag = False) -> None:
    """List what owners may do, as far as the database has it."""
    found = dict(use_database(database, lambda opened: opened.fetch("list_policies")))
    if as_json:
        print_json({name: msgspec.Raw(policy.encode()) for name, policy in found.items()})
    else:
        print_rows(("OWNER", "POLICY"), sorted(found.items()), "The database has no policies.")


@owners.command("set")
def set_policy(
    name: OwnerName,
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="KEY= alone removes a key.")],
    database: DatabaseUrl,
) -> None:
    """Set what an owner may do, on every node within a second. The keys are those of owners.NAME in the settings."""

    async def change(opened: Statements) -> str:
        policy = msgspec.json.decode(dict(await opened.fetch("list_policies")).get(name, "{}"))
        policy |= {key: value for key, _, value in pairs}
        made = msgspec.json.encode(make_policy(name, policy, lax=True)).decode()
        await opened.change("set_policy", name, made)
        await _note(opened, "owner.changed", name, made)
        return made

    pairs = [text.partition("=") for text in changes]
    for key, equals, _ in pairs:
        require(equals, f"{key!r} must be written KEY=VALUE; KEY= alone removes a key.")
    typer.echo(f"{clean(name)}: {use_database(database, change, create=True)}")


@owners.command()
def erase(
    name: OwnerName,
    database: DatabaseUrl,
    end_user: EndUserOption = None,
    usage: Annotated[bool, typer.Option("--usage", help="The usage records too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete everything of an owner, or of one of its end users, but the records of its usage."""

    async def work(opened: Any) -> dict[str, int]:
        erased = await SqlOwner(opened, name, end_user).erase(usage=usage)
        subject = name if end_user is None else f"{name}, end user {end_user}"
        await _note(opened, "owner.erased", subject, msgspec.json.encode(erased).decode())
        return erased

    erased = use_database(database, work)
    if as_json:
        print_json(erased)
        return
    running = erased.pop("running")
    print_rows(("DELETED", "COUNT"), [[kind, str(count)] for kind, count in erased.items()], "")
    if running:
        notice = f"{running} responses have not ended: the next server that starts cancels and erases them."
        typer.echo(notice, err=True)


@owners.command()
def export(
    name: OwnerName,
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    database: DatabaseUrl,
    end_user: EndUserOption = None,
) -> None:
    """Write an owner's responses, with their input, its conversations and usage records to FILE, as JSON lines."""

    async def work(opened: Any) -> int:
        count = 0
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            async for line in SqlOwner(opened, name, end_user).export():
                out.write(msgspec.json.encode(line) + b"\n")
                count += 1
        return count

    require(not file.exists(), f"{file} exists.")
    exported = use_database(database, work)
    typer.echo(f"{exported} responses, conversations and usage records of {clean(name)} are in {file}")


async def _note(database: Statements, action: str, subject: str, detail: str) -> None:
    entry = (SystemClock().now(), ACTOR, action, subject, detail)
    await database.change("add_audit", *entry)
