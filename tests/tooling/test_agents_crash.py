"""kill -9 around the calls of agents: finished ones are made once, and the agent goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.checker import check_ended
from tests.crash.client import Json, Stream, wait_until
from tests.support.upstream import HANG, FakeUpstream, Script, say
from tests.tooling.stage import Stage, find_call, said, shapes, want

# One of each kind: the name of its model, how it is named in its module, and who its scripted model is.
KINDS = {"asker": "asker", "The-Librarian": "librarian", "archivist": "archivist"}
MODELS = ("for-The Librarian", "for-archivist")


@pytest.fixture
def stage(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Stage]:
    made = Stage(tmp_path, upstream)
    yield made
    made.stop()


class Scene:
    """Each kind of agent is asked to look a word up, all at once, by a client that keeps what it sees."""

    def __init__(self, stage: Stage, point: str) -> None:
        self.stage = stage
        self.words = {name: f"{point}/{name}" for name in KINDS}
        self.streams: dict[str, Stream] = {}

    def play(self) -> None:
        self.streams = {name: self.stage.client.stream(name, word) for name, word in self.words.items()}

    def read(self) -> None:
        for stream in self.streams.values():
            stream.read_all()

    def check(self) -> dict[str, Json]:
        """What became of each, once the server is back: one continuous stream, and one call at most."""
        ended = {}
        for name, stream in self.streams.items():
            with self.stage.client.follow(stream.id, stream.last) as rest:
                seen = [*stream.frames, *rest.read_all().frames]
            ended[name] = check_ended(self.stage.client, stream.id, seen)
            stream.close()
            assert self.stage.calls.count(self.words[name]) <= 1
            output = find_call(ended[name])["output"] or "It was interrupted."
            # No model keeps the asker waiting, so it may have been killed between its one word and its end (D9).
            assert ended[name]["status"] in (("completed", "incomplete") if name == "asker" else ("completed",))
            assert said(ended[name]).endswith(output)
        return ended

    @property
    def made(self) -> list[str]:
        return [word for word in self.stage.calls if word in self.words.values()]


def answer(body: Json) -> Script:
    """The model of an agent: it wants the word looked up that it was asked about, and then tells of it."""
    told = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if not told:
        asked = body["messages"][-1]["content"]
        return want(asked if isinstance(asked, str) else asked[0]["text"])
    return say("It was interrupted." if "interrupted" in told[-1] else told[-1])


def make_slow(point: str) -> Callable[[Json], Script]:
    """The same, but when it is told of a word of that scene for the first time, it does not answer."""
    told: set[str] = set()

    def script(body: Json) -> Script:
        last = str(body["messages"][-1]["content"])
        if last.startswith(f"{point}/") and body["messages"][-1]["role"] == "tool" and last not in told:
            told.add(last)
            return [HANG]
        return answer(body)

    return script


def test_each_kind_of_agent_goes_on_wherever_the_server_is_killed(stage: Stage, upstream: FakeUpstream) -> None:
    """Each start takes up what the last kill has left, which calls nothing more, and is killed at the next point."""
    for model in MODELS:
        upstream.on(model, answer)
    names = list(KINDS.values())

    # While the tools run: nobody knows whether they took effect. And between the entry in the journal and the call.
    stage.gate.unlink()
    server = stage.start(*names, OUTLIVE_KILL_AT="after-call-journaled:6")
    running, announced = Scene(stage, "running"), Scene(stage, "announced")
    running.play()
    wait_until(lambda: len(running.made) == 3, "all tools run")
    announced.play()
    for scene in (running, announced):
        scene.read()
    server.wait_exit()
    assert len(announced.made) <= 2

    # Between a call and its entry in the journal, for one of them.
    stage.gate.touch()
    server = stage.start(*names, OUTLIVE_KILL_AT="before-output-journaled:3")
    for model in MODELS:
        upstream.on(model, make_slow("unheard"))
    for ended in (*running.check().values(), *announced.check().values()):
        assert find_call(ended)["status"] == "failed"
    assert len(running.made) == 3 and len(announced.made) <= 2
    unheard = Scene(stage, "unheard")
    unheard.play()
    unheard.read()
    server.wait_exit()

    # After the output, and before the next step of the model.
    for model in MODELS:
        upstream.on(model, make_slow("heard"))
    server = stage.start(*names, OUTLIVE_KILL_AT="after-output-journaled:3")
    statuses = [find_call(ended)["status"] for ended in unheard.check().values()]
    assert "failed" in statuses and len(unheard.made) == 3
    heard = Scene(stage, "heard")
    heard.play()
    heard.read()
    server.wait_exit()

    # Before a call is in the journal: nothing has happened, and all of it is done again.
    for model in MODELS:
        upstream.on(model, answer)
    stage.gate.unlink()
    server = stage.start(*names, OUTLIVE_KILL_AT="before-call-journaled:3")
    for ended in heard.check().values():
        assert find_call(ended)["status"] == "completed"
    assert len(heard.made) == 3
    wanted = Scene(stage, "wanted")
    wanted.play()
    wanted.read()
    server.wait_exit()

    stage.gate.touch()
    stage.start(*names)
    done = [name for name, ended in wanted.check().items() if find_call(ended)["status"] == "completed"]
    assert done and {wanted.words[name] for name in done} <= set(wanted.made)


def test_an_idempotent_call_that_was_running_is_made_again(stage: Stage) -> None:
    server = stage.start("clerk", OUTLIVE_KILL_AT="before-output-journaled:2")
    with stage.client.stream("clerk", "cat") as stream:
        stream.read_all()
        server.wait_exit()
        stage.start("clerk")
        with stage.client.follow(stream.id, stream.last) as rest:
            ended = check_ended(stage.client, stream.id, [*stream.frames, *rest.read_all().frames])
    assert ended["status"] == "completed"
    assert said(ended) == "Looking. First: cat is a word. Second: dog is a word."
    assert stage.calls == ["cat", "dog", "dog"]


def test_text_that_was_half_shown_goes_on_where_it_stopped_and_another_way_is_a_new_one(stage: Stage) -> None:
    stage.gate.unlink()
    server = stage.start("slow_reader", "fickle")
    fickle = stage.client.start("fickle", "Hi")
    wait_until(lambda: stage.calls == ["one"], "its tool runs")
    with stage.client.stream("slow_reader", "x") as stream:
        stream.read_until(lambda event: "line 5" in str(event.get("delta")))
        server.kill()
        stage.gate.touch()
        stage.start("slow_reader", "fickle")
        with stage.client.follow(stream.id, stream.last) as rest:
            ended = check_ended(stage.client, stream.id, [*stream.frames, *rest.read_all().frames])
    assert ended["status"] == "completed"
    assert shapes(ended) == ["message"]
    assert said(ended) == "".join(f"line {n}\n" for n in range(40))
    other = check_ended(stage.client, fickle)
    assert (other["status"], said(other)) == ("completed", "Another way.")
    assert stage.calls == ["one", "another"], json.dumps(other)
