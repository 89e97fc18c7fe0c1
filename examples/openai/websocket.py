"""Two turns over one WebSocket; the second continues the first.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/websocket.py
"""

import os

from openai import OpenAI

client = OpenAI()
model = os.environ.get("MODEL", "demo")

with client.responses.connect() as connection:
    connection.response.create(model=model, input="My name is Ada.", store=False)
    previous = ""
    for event in connection:
        if event.type == "response.completed":
            previous = event.response.id
            break

    connection.response.create(model=model, input="What is my name?", store=False, previous_response_id=previous)
    for event in connection:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        if event.type == "response.completed":
            print()
            break
