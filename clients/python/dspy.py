"""DSPy with `model_type="responses"`, by its own engine, or by LiteLLM where that lacks something."""

from __future__ import annotations

import json
from typing import Any

import dspy
from dspy.utils.exceptions import LMInvalidRequestError

from clients.python.checks import PIXEL, Client, Target, refused

client = Client("dspy", ("dspy", "litellm", "openai"))
client.lack("reasoning", "shows the answer only")
client.lack("conversation", "has no setting for it")
client.lack("background", "takes an unfinished response for an empty answer")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "has no setting for it")
client.lack("tokens", "has no method for it")

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def make_lm(target: Target, **fields: Any) -> dspy.LM:
    return dspy.LM(
        f"openai/{target.model()}",
        model_type="responses",
        api_base=target.base_url,
        api_key="any",
        cache=False,
        **fields,
    )


@client.check("plain", 'an `LM` with `model_type="responses"`')
def call(target: Target) -> None:
    assert make_lm(target)("Hello!")[0]["text"] == "You said: Hello!"


@client.check("streamed", "`streamify`; only DSPy's own engine streams Responses, its LiteLLM engine does not")
async def stream(target: Target) -> None:
    with dspy.context(lm=make_lm(target), adapter=dspy.JSONAdapter()):
        ask = dspy.streamify(dspy.Predict("question -> city, degrees: int"))
        found = [each async for each in ask(question="Report on Rome.")]
    pieces = [each.choices[0].delta.content for each in found[:-1] if each.choices[0].delta.content]
    assert len(pieces) > 3 and json.loads("".join(pieces)) == {"city": "Rome", "degrees": 21}
    assert (found[-1].city, found[-1].degrees) == ("Rome", 21)


@client.check("structured", "a signature, with `JSONAdapter`")
def structured(target: Target) -> None:
    with dspy.context(lm=make_lm(target), adapter=dspy.JSONAdapter()):
        report = dspy.Predict("question -> city, degrees: int")(question="Report on Rome.")
    assert (report.city, report.degrees) == ("Rome", 21)


@client.check("tools", "the calls that an `LM` returns, and their outputs in the next request")
def tools(target: Target) -> None:
    lm = make_lm(target)
    question = {"role": "user", "content": "Weather in Rome?"}
    calls = lm(messages=[question], tools=[TOOL])[0]["tool_calls"]
    assert [json.loads(each["function"]["arguments"]) for each in calls] == [{"city": "Rome"}]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    output = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny in Rome"}
    assert lm(messages=[question, called, output], tools=[TOOL])[0]["text"] == "The tool says: sunny in Rome."


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    assert make_lm(target)(messages=[{"role": "user", "content": parts}])[0]["text"] == "I see a picture."


@client.check("chain", "`previous_response_id`, passed on unchanged")
def chain(target: Target) -> None:
    lm = make_lm(target)
    lm("My name is Ada.")
    previous = lm.history[-1]["response"].id
    assert lm("What is my name?", previous_response_id=previous)[0]["text"] == "Your name is Ada."


@client.check("stateless", "`store=False`, the history sent whole")
def stateless(target: Target) -> None:
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    assert make_lm(target, store=False)(messages=messages)[0]["text"] == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as `LMInvalidRequestError`")
def errors(target: Target) -> None:
    with refused(LMInvalidRequestError) as found:
        make_lm(target, temperature=9)("Hello!")
    assert "'temperature' must be at most 2." in str(found.error)


if __name__ == "__main__":
    client.main()
