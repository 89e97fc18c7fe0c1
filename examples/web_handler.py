"""A web handler that does not wait for ever: it detaches, hands out a token, and any process can answer later.

Start a server (`outlive serve`), then: python examples/web_handler.py
    curl -d 'Why is the sea salty?' http://127.0.0.1:8000/ask     -> the answer, or 202 and where to ask for it
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
    """A new question. Nothing about it is kept here: the token, and the question itself, are all there is."""
    run = await DurableRun.open(client)
    return await answer(run, (await request.body()).decode())


async def look(request: Request) -> JSONResponse:
    """The same question again, with its token: attaches to the run that is there, and pays for nothing twice."""
    run = await DurableRun.open(client, request.path_params["token"])
    return await answer(run, (await request.body()).decode())


async def answer(run: DurableRun, question: str) -> JSONResponse:
    try:
        # When the time is over, or the browser has gone, this is cancelled; the server's run is not.
        result = await asyncio.wait_for(run.run(agent, question), WAIT_SECONDS)
    except TimeoutError:
        return JSONResponse({"token": run.token, "ask_again": f"/answers/{run.token}"}, status_code=202)
    return JSONResponse({"token": run.token, "answer": result.final_output})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with client:
        yield


routes = [Route("/ask", ask, methods=["POST"]), Route("/answers/{token}", look, methods=["POST"])]
app = Starlette(routes=routes, lifespan=lifespan)

if __name__ == "__main__":
    set_tracing_disabled(True)
    uvicorn.run(app, port=8000)
