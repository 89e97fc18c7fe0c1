"""Run the demo; exit with 0 only if every claim held."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from demo.chapters import CHAPTERS, Demo
from demo.server import Server
from demo.stage import Stage

INTRODUCTION = """\
[bold]Outlive[/]: responses that outlive the connection and the process.
Five public bug reports, reproduced against a real server process
with a real, very small model: it shows durability, not intelligence."""


def run_chapters(stage: Stage, server: Server) -> None:
    with stage.console.status("Starting the server and loading the embedded model ..."):
        server.start()
    stage.console.print(f"Serving on http://127.0.0.1:{server.port}, storing in a file.", highlight=False)
    demo = Demo(server, stage)
    for chapter in CHAPTERS:
        try:
            chapter(demo)
        except (LookupError, OSError, RuntimeError, ValueError) as error:
            # A chapter that fails is a claim that does not hold; the others may still be shown.
            stage.claim(f"{chapter.__name__} ran to its end", False, f"{type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="without the pauses for reading")
    options = parser.parse_args()
    console = Console()
    stage = Stage(console, pauses=not options.fast)
    console.print(Panel(INTRODUCTION, border_style="cyan"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outlive-demo-") as folder:
        server = Server(Path(folder))
        try:
            run_chapters(stage, server)
        except RuntimeError as error:
            stage.claim("the server starts", False, error)
        except KeyboardInterrupt:
            console.print("\nInterrupted.")
            return 130
        finally:
            server.stop()
    return conclude(stage, time.monotonic() - began)


def conclude(stage: Stage, seconds: float) -> int:
    stage.console.print()
    if stage.broken:
        lines = "\n".join(f"✗ {escape(text)}" for text in stage.broken)
        stage.console.print(Panel(f"[bold red]{len(stage.broken)} claims did not hold[/]\n{lines}", border_style="red"))
        return 1
    text = f"[bold green]All {stage.held} claims held[/] in {seconds:.0f} s. Try it yourself: [bold]make run[/]"
    stage.console.print(Panel(text, border_style="green"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
