"""An Agent of openai-agents as a model: outlive serve --agent examples.agents.openai_agents:librarian --upstream URL"""

import os

from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url=os.environ.get("MODEL_URL", "http://127.0.0.1:7878/v1"), api_key="any")


@function_tool
def find_book(title: str) -> str:
    """Find a book in the shelves."""
    return f"{title} stands in shelf {len(title) % 7}."


librarian = Agent(name="librarian", model=OpenAIChatCompletionsModel("MODEL", client), tools=[find_book])
