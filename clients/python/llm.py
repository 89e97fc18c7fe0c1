"""The command `llm`, with the configuration that the page for users shows."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from clients.python.checks import PIXEL, THOUGHT, Client, Target
from clients.snippets import read_configuration

client = Client("llm", ("llm", "openai"))
client.lack("chain", "sends its own history, which it keeps in a database (see stateless)")
client.lack("conversation", "has no setting for it")
client.lack("background", "has no setting for it")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "only stops reading")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "has no setting for it")
client.lack("tokens", "has no command for it")

WEATHER = """
def weather(city: str) -> str:
    "The weather in a city."
    return f"sunny in {city}"
"""


class User:
    """A folder with the configuration, and a model."""

    def __init__(self, target: Target, kind: str = "plain", base_url: str | None = None) -> None:
        self.name = target.model(kind)
        self.folder = Path(tempfile.mkdtemp(prefix="outlive-client-"))
        models = read_configuration("llm", self.name, base_url or target.base_url)
        (self.folder / "extra-openai-models.yaml").write_text(models)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"LLM_USER_PATH": str(self.folder)}
        command = [sys.executable, "-m", "llm", "-m", "outlive", *words]
        return subprocess.run(
            command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def ask(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")


@client.check("plain", "`--no-stream`")
def plain(target: Target) -> None:
    assert User(target).ask("--no-stream", "Hello!") == "You said: Hello!"


@client.check("streamed", "a prompt, whose answer is streamed")
def stream(target: Target) -> None:
    assert User(target).ask("One two three.") == "You said: One two three."


@client.check("structured", "`--schema`")
def structured(target: Target) -> None:
    answer = User(target).ask("--schema", "city, degrees int", "Report on Rome.")
    assert json.loads(answer) == {"city": "Rome", "degrees": 21}


@client.check("tools", "`--functions`: two calls in one step, streamed and plain")
def tools(target: Target) -> None:
    for how in ([], ["--no-stream"]):
        answer = User(target).ask("--functions", WEATHER, *how, "Weather in Rome and weather in Oslo?")
        assert answer == "The tool says: sunny in Rome and sunny in Oslo."


@client.check("reasoning", "the reasoning on standard error, before the answer")
def reasoning(target: Target) -> None:
    done = User(target, "thinker").run("Hello!")
    assert done.stdout == "You said: Hello!\n" and THOUGHT in done.stderr


@client.check("images", "`--attachment`")
def image(target: Target) -> None:
    user = User(target)
    (user.folder / "picture.png").write_bytes(base64.b64decode(PIXEL.partition(",")[2]))
    assert user.ask("What is this?", "--attachment", "picture.png") == "I see a picture."


@client.check("stateless", "`--continue`: the history sent whole, through a tool call")
def stateless(target: Target) -> None:
    user = User(target)
    user.ask("--functions", WEATHER, "My name is Ada. Weather in Rome?")
    assert user.ask("--continue", "What is my name?") == "Your name is Ada."


@client.check("errors", "the server's message")
def errors(target: Target) -> None:
    done = User(target, base_url=f"{target.base_url}/elsewhere").run("Hello!")
    assert done.returncode == 1 and "There is no POST" in done.stderr


if __name__ == "__main__":
    client.main()
