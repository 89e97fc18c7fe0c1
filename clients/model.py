"""The model behind the matrix: its answer follows from the request, so that every client's can be checked."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.upstream import Gate, Json, Script, Step, call, ending, reasoning, say

THOUGHT = "They want an answer."


class Model:
    """One model under many names, of which some contain a kind: a `thinker` reasons before it answers, a `held` one
    stops in the middle of its answer until it is released; any other just answers."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate())

    def answer(self, body: Json) -> Script:
        name = str(body["model"])
        steps = _choose_steps(body)
        if "thinker" in name:
            return [*(reasoning(piece) for piece in _pieces(THOUGHT)), *steps]
        if "held" in name:
            return [*steps[:2], self.gate(name), *steps[2:]]
        return steps


def _choose_steps(body: Json) -> list[Step]:
    """Call the first tool where the question is about the weather, or the shell where it names a command; otherwise
    answer with text."""
    messages: list[Json] = body["messages"]
    # Several messages may have been joined into one; the question is the last of them.
    question = _text_of(messages[-1]).rpartition("\n\n")[2]
    if messages[-1]["role"] == "user" and body.get("tools"):
        if cities := re.findall(r"[Ww]eather in (\w+)", question):
            tool: str = body["tools"][0]["function"]["name"]
            calls = [call(n, json.dumps({"city": city}), f"call_{city}", tool) for n, city in enumerate(cities)]
            return [*calls, *ending("tool_calls")]
        if command := re.search(r"Run this command: (.+)", question):
            return [_call_shell(body["tools"], command[1]), *ending("tool_calls")]
    return say(*_pieces(_compose(body, messages, question)))


def _call_shell(tools: list[Json], command: str) -> Step:
    """Call the tool that takes a command, which every coding agent names differently."""
    for function in (tool["function"] for tool in tools):
        schema = function["parameters"]
        for argument in ("cmd", "command"):
            if argument in schema["properties"]:
                arguments = dict.fromkeys(schema.get("required", ()), "As requested.") | {argument: command}
                return call(0, json.dumps(arguments), "call_shell", function["name"])
    raise AssertionError("no tool takes a command")


def _compose(body: Json, messages: list[Json], question: str) -> str:
    # DSPy asks for the format in its prompt.
    if body.get("response_format", {}).get("type") == "json_schema" or question.startswith(
        "Respond with a JSON object"
    ):
        return '{"city": "Rome", "degrees": 21}'
    if messages[-1]["role"] == "tool":
        outputs = [_text_of(message) for message in messages if message["role"] == "tool"]
        return f"The tool says: {' and '.join(outputs)}."
    names = [found[1] for message in messages if (found := re.search(r"[Mm]y name is (\w+)", _text_of(message)))]
    if "Write this summary now" in _text_of(messages[-1]):
        return f"The user said: my name is {names[-1]}." if names else "Nothing was said."
    if "my name?" in question:
        return f"Your name is {names[-1]}." if names else "You have not told me."
    if _shows_image(messages[-1]):
        return "I see a picture."
    return f"You said: {question}"


def _text_of(message: Json) -> str:
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _shows_image(message: Json) -> bool:
    content: Any = message.get("content")
    return isinstance(content, list) and any(part["type"] == "image_url" for part in content)


def _pieces(text: str) -> list[str]:
    """Split like a model's tokens: into words, each with the space before it."""
    return re.findall(r"\s*\S+", text)
