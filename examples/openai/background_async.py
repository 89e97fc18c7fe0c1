"""Background mode with the asynchronous client: submit, poll until the response has ended, print it.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/background_async.py
"""

import asyncio
import os

from openai import AsyncOpenAI

client = AsyncOpenAI()


async def main() -> None:
    response = await client.responses.create(
        model=os.environ.get("MODEL", "demo"),
        input="Write a very long novel about otters in space.",
        background=True,
    )
    while response.status in {"queued", "in_progress"}:
        await asyncio.sleep(0.5)
        response = await client.responses.retrieve(response.id)
    print(f"Final status: {response.status}\nOutput:\n{response.output_text}")


asyncio.run(main())
