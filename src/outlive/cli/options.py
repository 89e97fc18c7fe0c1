"""Options that several commands share: of a server or a database to ask, of JSON, and of the settings of a server."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer
from msgspec import UNSET

from outlive.cli.client import ApiClient
from outlive.cli.terminal import print_json
from outlive.config import database_url
from outlive.config.settings import LIMITS, NEVER, OPTIONS, Option
from outlive.core.errors import require
from outlive.ports.database import Statements

T = TypeVar("T")

Place = ApiClient | str  # a running server, or the URL of a database
# What --json prints, and a function that prints it for people.
Answer = tuple[object, Callable[[], None]]

DEFAULT_SERVER = "http://127.0.0.1:7878"
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
_SERVER = typer.Option("--server", envvar="OUTLIVE_SERVER", help="The server's address.")
_KEY = typer.Option("--key", envvar="OUTLIVE_KEY", help="Your key, or env:NAME for the variable that contains it.")
_DATABASE_HELP = "The database itself, in place of a server: sqlite:///FILE or postgresql://..."


def shared(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    """Return an option that is added to the signatures of commands."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


JSON = shared("as_json", JsonFlag, False)
DATABASE = shared("database", Annotated[str | None, typer.Option("--database", help=_DATABASE_HELP)])
SERVER = (shared("server", Annotated[str, _SERVER], DEFAULT_SERVER), shared("key", Annotated[str | None, _KEY]))


def command(
    group: typer.Typer | None, name: str, *options: inspect.Parameter
) -> Callable[[Callable[..., Answer | None]], Callable[..., None]]:
    """Make a command of a function, in a group if it is given, with these options, or else those of a server and JSON.

    The first argument is the place that the options name; the others are the options for which it has parameters. What
    it returns is printed as JSON or for people; None: it has printed it itself.
    """
    options = options or (JSON, *SERVER)

    def make(function: Callable[..., Answer | None]) -> Callable[..., None]:
        _, *own = inspect.signature(function).parameters.values()
        added = {option.name for option in options}

        def run(**given: Any) -> None:
            database = given.get("database")
            place = ApiClient(given["server"], given["key"]) if database is None else database
            answer = function(place, **{each.name: given[each.name] for each in own})
            if answer is not None and given["as_json"]:
                print_json(answer[0])
            elif answer is not None:
                answer[1]()

        run.__name__, run.__doc__ = name, function.__doc__
        parameters = [*(each for each in own if each.name not in added), *options]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return group.command(name)(run) if group is not None else run

    return make


def use_database(url: str, work: Callable[[Statements], Awaitable[T]], *, create: bool = False) -> T:
    """Work on a database, which a server may be using. `create`: make the file if there is none."""
    # The other commands start faster without this import.
    from outlive.storage.storage import open_beside

    async def run() -> T:
        async with open_beside(url) as database:
            return await work(database)

    database_url.check(url)
    exists = create or database_url.is_shared(url) or database_url.path_of(url).exists()
    require(exists, f"There is no database {database_url.show(url)}.")
    return asyncio.run(run())


# -- the settings of a server


def take_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag per setting, besides its own parameters."""
    flags = [_make_flag(option, option.flag) for option in OPTIONS.values() if option.flag]
    given = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*flags, *given])  # type: ignore[attr-defined]
    return command


def _make_flag(option: Option, flag: str) -> inspect.Parameter:
    """Return one flag. All are read as text, which `outlive.config` checks as it checks every source."""
    kind: Any = str
    metavar: str | None = option.metavar
    text, value = option.help, option.default
    if option.type is bool:
        kind, flag, metavar = bool, f"{flag}/--no-{flag[2:]}", None
    elif value is UNSET:
        kind = list[str]
    elif option.never or value not in (None, ""):
        shown = NEVER if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        text += f" Default: {shown}."
    panel = "Limits" if option.table == LIMITS else None
    made = typer.Option(flag, help=text, metavar=metavar, show_default=False, rich_help_panel=panel)
    return shared(option.name, Annotated[kind | None, made])
