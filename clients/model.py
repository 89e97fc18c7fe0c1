"""The model behind the matrix: what it says follows from what it is asked, so that every client can be held to it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.upstream import Gate, Json, Script, Step, call, ending, reasoning, say

THOUGHT = "They want an answer."


class Model:
    """One mind under many names. A word in a name is its nature: a `thinker` reasons aloud before it answers, a `held`
    one stops in the middle of its answer until it is let go; any other just answers."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate())

    def answer(self, body: Json) -> Script:
        name = str(body["model"])
        steps = _act(body)
        if "thinker" in name:
            return [*(reasoning(piece) for piece in _pieces(THOUGHT)), *steps]
        if "held" in name:
            return [*steps[:2], self.gate(name), *steps[2:]]
        return steps


def _act(body: Json) -> list[Step]:
    """Call a tool where the question is what a tool is for; otherwise say something."""
    messages: list[Json] = body["messages"]
    # Messages that follow one another may come as one; the question is what was said last.
    asked = _words(messages[-1]).rpartition("\n\n")[2]
    cities = re.findall(r"[Ww]eather in (\w+)", asked)
    if messages[-1]["role"] == "user" and cities and body.get("tools"):
        tool: str = body["tools"][0]["function"]["name"]
        calls = [call(n, json.dumps({"city": city}), f"call_{city}", tool) for n, city in enumerate(cities)]
        return [*calls, *ending("tool_calls")]
    return say(*_pieces(_compose(body, messages, asked)))


def _compose(body: Json, messages: list[Json], asked: str) -> str:
    if body.get("response_format", {}).get("type") == "json_schema":
        return '{"city": "Rome", "degrees": 21}'
    if messages[-1]["role"] == "tool":
        outputs = [_words(message) for message in messages if message["role"] == "tool"]
        return f"The tool says: {' and '.join(outputs)}."
    names = [found[1] for message in messages if (found := re.search(r"[Mm]y name is (\w+)", _words(message)))]
    if "Write this summary now" in _words(messages[-1]):
        return f"The user said: my name is {names[-1]}." if names else "Nothing was said."
    if "my name?" in asked:
        return f"Your name is {names[-1]}." if names else "You have not told me."
    if _shows_image(messages[-1]):
        return "I see a picture."
    return f"You said: {asked}"


def _words(message: Json) -> str:
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _shows_image(message: Json) -> bool:
    content: Any = message.get("content")
    return isinstance(content, list) and any(part["type"] == "image_url" for part in content)


def _pieces(words: str) -> list[str]:
    """As a model's tokens come: a word at a time, each with the space before it."""
    return re.findall(r"\s*\S+", words)
