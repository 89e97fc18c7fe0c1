"""The same prompt in the foreground, in the background, and streamed; only one setting differs.

Start a server (`outlive serve`), then: python examples/plain_and_background.py
"""

from __future__ import annotations

import asyncio
import os

from agents import Agent, ModelSettings, RunConfig, Runner, set_tracing_disabled
from openai import AsyncOpenAI

from outlive.agents import DurableProvider

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:7878/v1")
MODEL = os.environ.get("MODEL", "demo")
PROMPT = "Why is the sea salty? One sentence."


async def main() -> None:
    async with AsyncOpenAI(base_url=URL, api_key=os.environ.get("OPENAI_API_KEY", "any")) as client:
        await compare(client)


async def compare(client: AsyncOpenAI) -> None:
    config = RunConfig(model_provider=DurableProvider(client))
    agent = Agent(name="Explainer", instructions="Be brief.", model=MODEL)

    # The answer comes over one connection: if it breaks, this script does not get the answer.
    plain = agent.clone(model_settings=ModelSettings(extra_args={"background": False}))
    result = await Runner.run(plain, PROMPT, run_config=config)
    print("plain:     ", result.final_output)

    # Submitted, then polled: the answer survives broken connections and restarts of the server.
    result = await Runner.run(agent, PROMPT, run_config=config)
    print("background:", result.final_output)

    # Streamed: after a broken connection the stream resumes after its last event.
    print("streamed:   ", end="")
    streamed = Runner.run_streamed(agent, PROMPT, run_config=config)
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    set_tracing_disabled(True)
    asyncio.run(main())
