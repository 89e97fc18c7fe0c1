"""The command `outlive`: run a server, inspect its responses and conversations, diagnose problems."""

import errno
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outlive import __version__
from outlive.cli.doctor import doctor
from outlive.cli.owners import audit, keys, owners, usage
from outlive.cli.resources import conversations, responses, webhooks
from outlive.cli.serve import backup, copy, migrate, restore, serve, shrink
from outlive.cli.terminal import clean
from outlive.core.errors import OutliveError, SettingsError


class _Commands(TyperGroup):
    """Prints an error as one sentence and sets the exit code: 2 for settings, 1 for all else."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OutliveError as error:
            typer.echo(f"outlive: {clean(error.message)}", err=True)
            raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None


app = typer.Typer(
    cls=_Commands,
    name="outlive",
    help="A Responses + Conversations server whose responses outlive the connection, the process and the node.",
    no_args_is_help=True,
    # A traceback with local variables would show keys.
    pretty_exceptions_enable=False,
)
for command in (serve, audit, usage, doctor, migrate, copy, backup, restore, shrink):
    app.command()(command)
app.add_typer(responses, name="responses")
app.add_typer(conversations, name="conversations")
app.add_typer(keys, name="keys")
app.add_typer(owners, name="owners")
app.add_typer(webhooks, name="webhooks")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlive {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command of the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for locales that lack characters of a text
    try:
        app(prog_name="outlive")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Python writes at its end what is left in the buffer: that would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"outlive: The output cannot be written: {error.strerror}.")
