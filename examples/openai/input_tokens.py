"""Count the tokens of a request without sending it to the model.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/input_tokens.py
"""

import os

from openai import OpenAI

client = OpenAI()

count = client.responses.input_tokens.count(
    model=os.environ.get("MODEL", "demo"),
    instructions="Answer in one sentence.",
    input="Why is the sea salty?",
)
print(f"Input tokens: {count.input_tokens}")
