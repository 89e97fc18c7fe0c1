"""A stream of events, and the helper that collects them into a response.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/streaming.py
"""

import os

from openai import OpenAI

client = OpenAI()
model = os.environ.get("MODEL", "demo")

for event in client.responses.create(model=model, input="Tell me a short joke.", stream=True):
    print(event.type)

with client.responses.stream(model=model, input="Tell me a short joke.") as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print("\nFinal:", stream.get_final_response().output_text)
