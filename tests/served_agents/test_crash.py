"""kill -9 around the calls of agents: finished calls are made once, and the agent continues after them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.served_agents.harness import AgentServer, item_types, output_text
from tests.support.checks import check_ended
from tests.support.http_client import EventStream, Json
from tests.support.tool_calls import find_call, request_call
from tests.support.upstream import HANG, FakeUpstream, Script, say
from tests.support.waiting import wait_until

# One agent of each kind: the name of its model, and its name in its module.
KINDS = {"one_call": "one_call", "Openai-Agent": "openai_agent", "pydantic_agent": "pydantic_agent"}
MODELS = ("for-Openai Agent", "for-pydantic_agent")


@pytest.fixture
def agents(tmp_path: Path, upstream: FakeUpstream) -> Iterator[AgentServer]:
    served = AgentServer(tmp_path, upstream)
    yield served
    served.stop()


class Round:
    """One request to each kind of agent at the same time, by a client that keeps all frames it receives."""

    def __init__(self, agents: AgentServer, point: str) -> None:
        self.agents = agents
        self.words = {name: f"{point}/{name}" for name in KINDS}
        self.streams: dict[str, EventStream] = {}

    def begin(self) -> None:
        self.streams = {name: self.agents.client.stream(name, input=word) for name, word in self.words.items()}

    def read(self) -> None:
        for stream in self.streams.values():
            stream.read_all()

    def check(self) -> dict[str, Json]:
        """Check after a restart that each stream continues without a gap, and that each call was made at most once."""
        ended = {}
        for name, stream in self.streams.items():
            with self.agents.client.follow(stream.id, stream.last_number) as rest:
                seen = [*stream.frames, *rest.read_all().frames]
            ended[name] = check_ended(self.agents.client, stream.id, seen)
            stream.close()
            assert self.agents.calls.count(self.words[name]) <= 1
            output = find_call(ended[name])["output"] or "It was interrupted."
            # one_call waits for no model, so the kill may have come between its only text and its end (D9).
            assert ended[name]["status"] in (("completed", "incomplete") if name == "one_call" else ("completed",))
            assert output_text(ended[name]).endswith(output)
        return ended

    @property
    def made(self) -> list[str]:
        return [word for word in self.agents.calls if word in self.words.values()]


def answer(body: Json) -> Script:
    """Script of an agent's model: request a call with the user's word, then answer with its output."""
    outputs = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if not outputs:
        asked = body["messages"][-1]["content"]
        return request_call("look_up", word=asked if isinstance(asked, str) else asked[0]["text"])
    return say("It was interrupted." if "interrupted" in outputs[-1] else outputs[-1])


def hang_once(point: str) -> Callable[[Json], Script]:
    """The same script, but it hangs when it sees the output of a call of that round for the first time."""
    seen: set[str] = set()

    def script(body: Json) -> Script:
        last = str(body["messages"][-1]["content"])
        if last.startswith(f"{point}/") and body["messages"][-1]["role"] == "tool" and last not in seen:
            seen.add(last)
            return [HANG]
        return answer(body)

    return script


def test_each_kind_of_agent_continues_wherever_the_server_is_killed(
    agents: AgentServer, upstream: FakeUpstream
) -> None:
    """Each start continues what the last kill interrupted, without further calls, and is killed at the next point."""
    for model in MODELS:
        upstream.on(model, answer)
    names = list(KINDS.values())

    # Killed while tools run, whose effect is then unknown, and between the journal's entry and the call.
    agents.gate.unlink()
    server = agents.start(*names, OUTLIVE_KILL_AT="after-call-journaled:6")
    running, announced = Round(agents, "running"), Round(agents, "announced")
    running.begin()
    wait_until(lambda: len(running.made) == 3, "all tools run")
    announced.begin()
    for each in (running, announced):
        each.read()
    server.wait_exit()
    assert len(announced.made) <= 2

    # Killed between a call and the entry of its output in the journal, for one of them.
    agents.gate.touch()
    server = agents.start(*names, OUTLIVE_KILL_AT="before-output-journaled:3")
    for model in MODELS:
        upstream.on(model, hang_once("unrecorded"))
    for ended in (*running.check().values(), *announced.check().values()):
        assert find_call(ended)["status"] == "failed"
    assert len(running.made) == 3 and len(announced.made) <= 2
    unrecorded = Round(agents, "unrecorded")
    unrecorded.begin()
    unrecorded.read()
    server.wait_exit()

    # Killed after the output, and before the next step of the model.
    for model in MODELS:
        upstream.on(model, hang_once("recorded"))
    server = agents.start(*names, OUTLIVE_KILL_AT="after-output-journaled:3")
    statuses = [find_call(ended)["status"] for ended in unrecorded.check().values()]
    assert "failed" in statuses and len(unrecorded.made) == 3
    recorded = Round(agents, "recorded")
    recorded.begin()
    recorded.read()
    server.wait_exit()

    # Killed before a call is in the journal: nothing has happened, and all of it is done again.
    for model in MODELS:
        upstream.on(model, answer)
    agents.gate.unlink()
    server = agents.start(*names, OUTLIVE_KILL_AT="before-call-journaled:3")
    for ended in recorded.check().values():
        assert find_call(ended)["status"] == "completed"
    assert len(recorded.made) == 3
    requested = Round(agents, "requested")
    requested.begin()
    requested.read()
    server.wait_exit()

    agents.gate.touch()
    agents.start(*names)
    done = [name for name, ended in requested.check().items() if find_call(ended)["status"] == "completed"]
    assert done and {requested.words[name] for name in done} <= set(requested.made)


def test_an_interrupted_idempotent_call_is_repeated(agents: AgentServer) -> None:
    server = agents.start("two_calls", OUTLIVE_KILL_AT="before-output-journaled:2")
    with agents.client.stream("two_calls", input="cat") as stream:
        stream.read_all()
        server.wait_exit()
        agents.start("two_calls")
        with agents.client.follow(stream.id, stream.last_number) as rest:
            ended = check_ended(agents.client, stream.id, [*stream.frames, *rest.read_all().frames])
    assert ended["status"] == "completed"
    assert output_text(ended) == "Looking. First: cat is a word. Second: dog is a word."
    assert agents.calls == ["cat", "dog", "dog"]


def test_a_half_shown_text_continues_where_it_stopped_and_a_diverging_agent_is_followed(agents: AgentServer) -> None:
    agents.gate.unlink()
    server = agents.start("slow_text", "diverging")
    diverging_id = agents.client.submit("diverging", input="Hi")
    wait_until(lambda: agents.calls == ["one"], "its tool runs")
    with agents.client.stream("slow_text", input="x") as stream:
        stream.read_until(lambda event: "line 5" in str(event.get("delta")))
        server.kill()
        agents.gate.touch()
        agents.start("slow_text", "diverging")
        with agents.client.follow(stream.id, stream.last_number) as rest:
            ended = check_ended(agents.client, stream.id, [*stream.frames, *rest.read_all().frames])
    assert ended["status"] == "completed"
    assert item_types(ended) == ["message"]
    assert output_text(ended) == "".join(f"line {n}\n" for n in range(40))
    other = check_ended(agents.client, diverging_id)
    assert (other["status"], output_text(other)) == ("completed", "Another way.")
    assert agents.calls == ["one", "another"], json.dumps(other)
