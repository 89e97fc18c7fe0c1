"""An agent that may be killed at any time: started again, it continues where it was.

Start a server (`outlive serve`), then: python examples/killed_and_restarted.py FOLDER
Kill it (kill -9) whenever you like and run the same command again. While it waits for approval: touch FOLDER/approved
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from agents import Agent, RunContextWrapper, RunHooks, Tool, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from outlive.agents import DurableRun

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:7878/v1")
MODEL = os.environ.get("MODEL", "demo")
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "run")


@function_tool
def charge_card() -> str:
    """Charge the customer's card."""
    with (FOLDER / "charges").open("a") as charges:
        charges.write("charged\n")
    return "The card was charged."


@function_tool
async def wait_for_approval() -> str:
    """Wait for the approval."""
    await asyncio.to_thread(wait_for_file, FOLDER / "approved")
    return "Approved."


def wait_for_file(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)


class PrintRecorded(RunHooks[Any]):
    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object) -> None:
        print(f"recorded: {tool.name}", flush=True)


async def open_run(client: AsyncOpenAI) -> DurableRun:
    """Open the run of this folder. The token is stored before anything is run: a restart needs nothing else."""
    file = FOLDER / "token"
    if file.exists():
        return await DurableRun.open(client, file.read_text())
    run = await DurableRun.open(client)
    file.write_text(run.token)
    return run


async def main() -> None:
    agent = Agent(name="Cashier", model=MODEL, tools=[charge_card, wait_for_approval])
    async with AsyncOpenAI(base_url=URL, api_key=os.environ.get("OPENAI_API_KEY", "any")) as client:
        run = await open_run(client)
        result = await run.run(agent, "Charge the card, get an approval, then say so.", hooks=PrintRecorded())
        print("done:", result.final_output, flush=True)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    set_tracing_disabled(True)
    asyncio.run(main())
