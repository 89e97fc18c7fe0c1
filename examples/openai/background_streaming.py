"""A background stream that is interrupted and then continued after its last event, with `starting_after`.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/background_streaming.py
"""

import os

from openai import OpenAI

client = OpenAI()

response_id = None
last = 0
text = ""

with client.responses.create(
    model=os.environ.get("MODEL", "demo"),
    input="Count slowly to one hundred.",
    background=True,
    stream=True,
) as stream:
    for event in stream:
        last = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            print(event.delta, end="", flush=True)
            break

print("\nInterrupted. Continuing ...")

assert response_id is not None
for event in client.responses.retrieve(response_id, stream=True, starting_after=last):
    if event.type == "response.output_text.delta":
        text += event.delta
        print(event.delta, end="", flush=True)
    if event.type == "response.completed":
        assert text == event.response.output_text, "an event was lost or delivered twice"
        print("\nDone.")
