"""Structured outputs: an answer parsed into a Pydantic model, plain and streamed.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/structured_outputs.py
"""

import os

from openai import OpenAI
from pydantic import BaseModel


class Report(BaseModel):
    city: str
    degrees: int


client = OpenAI()
model = os.environ.get("MODEL", "demo")

parsed = client.responses.parse(model=model, input="How warm is it in Rome?", text_format=Report)
print("Parsed:", parsed.output_parsed)

with client.responses.stream(model=model, input="How warm is it in Rome?", text_format=Report) as stream:
    for _ in stream:
        pass
    print("Streamed:", stream.get_final_response().output_parsed)
