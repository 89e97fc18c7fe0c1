"""A function tool: the model calls it, this program runs it, and the model answers with its result.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/openai/tools.py
"""

import json
import os

from openai import OpenAI
from openai.types.responses import FunctionToolParam
from openai.types.responses.response_input_param import FunctionCallOutput

client = OpenAI()
model = os.environ.get("MODEL", "demo")

weather: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}

response = client.responses.create(model=model, input="What is the weather in Rome?", tools=[weather])
outputs: list[FunctionCallOutput] = []
for item in response.output:
    if item.type == "function_call":
        city = json.loads(item.arguments)["city"]
        print(f"Called: {item.name}({city})")
        outputs.append({"type": "function_call_output", "call_id": item.call_id, "output": f"sunny in {city}"})

answer = client.responses.create(model=model, previous_response_id=response.id, input=[*outputs], tools=[weather])
print("Answer:", answer.output_text)
