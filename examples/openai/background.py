"""Background mode: submit, poll until the response has ended, print it.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/background.py
"""

import os
from time import sleep

from openai import OpenAI

client = OpenAI()

response = client.responses.create(
    model=os.environ.get("MODEL", "demo"),
    input="Write a very long novel about otters in space.",
    background=True,
)

while response.status in {"queued", "in_progress"}:
    print(f"Current status: {response.status}")
    sleep(0.5)
    response = client.responses.retrieve(response.id)

print(f"Final status: {response.status}\nOutput:\n{response.output_text}")
