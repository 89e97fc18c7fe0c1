"""A web handler with a time limit: it detaches, returns a token, and any process can answer a later request.

Start a server (`outlive serve`), then: python examples/web_handler.py
    curl -d 'Why is the sea salty?' http://127.0.0.1:8000/ask     -> the answer, or 202 and the path to ask again
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from agents import Agent, set_tracing_disabled
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from outlive.agents import DurableRun

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:7878/v1")
MODEL = os.environ.get("MODEL", "demo")
WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "5"))

client = AsyncOpenAI(base_url=URL, api_key=os.environ.get("OPENAI_API_KEY", "any"))
agent = Agent(name="Explainer", instructions="Be brief.", model=MODEL)


async def ask(request: Request) -> JSONResponse:
    """Answer a new question. This process keeps no state: the token and the question are all that is needed later."""
    run = await DurableRun.open(client)
    return await answer(run, (await request.body()).decode())


async def ask_again(request: Request) -> JSONResponse:
    """Answer the same question again, with its token: attach to the existing run, without a second model call."""
    run = await DurableRun.open(client, request.path_params["token"])
    return await answer(run, (await request.body()).decode())


async def answer(run: DurableRun, question: str) -> JSONResponse:
    try:
        # At the time limit, or when the browser disconnects, this call is cancelled; the run on the server continues.
        result = await asyncio.wait_for(run.run(agent, question), WAIT_SECONDS)
    except TimeoutError:
        return JSONResponse({"token": run.token, "ask_again": f"/answers/{run.token}"}, status_code=202)
    return JSONResponse({"token": run.token, "answer": result.final_output})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with client:
        yield


routes = [Route("/ask", ask, methods=["POST"]), Route("/answers/{token}", ask_again, methods=["POST"])]
app = Starlette(routes=routes, lifespan=lifespan)

if __name__ == "__main__":
    set_tracing_disabled(True)
    uvicorn.run(app, port=8000)
