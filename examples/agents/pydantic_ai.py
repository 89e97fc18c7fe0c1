"""An Agent of pydantic-ai as a model: outlive serve --agent examples.agents.pydantic_ai:archivist --upstream URL"""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ.get("MODEL_URL", "http://127.0.0.1:7878/v1"), api_key="any")


def find_file(name: str) -> str:
    """Find a file in the archive."""
    return f"{name} is in box {len(name) % 7}."


archivist = Agent(OpenAIChatModel("MODEL", provider=provider), name="archivist", tools=[find_file])
