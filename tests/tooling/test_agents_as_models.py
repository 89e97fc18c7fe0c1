"""Agents of every kind behind the Responses API: plain ones, and those that use all that their framework has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.crash.checker import check_ended
from tests.crash.client import wait_until
from tests.support.upstream import FakeUpstream, Script, call, ending, say
from tests.tooling.stage import MODULES, Stage, said, shapes, want

FILED = '{"name":"x","box":3}'
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[Stage]:
    """One server with all of them, and an upstream besides."""
    made = Stage(tmp_path_factory.mktemp("agents"), upstream)
    made.start(*(name for names in MODULES.values() for name in names))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def anew(stage: Stage) -> None:
    stage.file.unlink(missing_ok=True)
    stage.gate.touch()


def script(upstream: FakeUpstream, name: str, *scripts: Script) -> int:
    """What the agent's model says next; how often it was asked before."""
    for each in scripts:
        upstream.queue(each, f"for-{name}")
    return len(upstream.bodies(f"for-{name}"))


def test_agents_are_listed_and_answer_under_their_names(stage: Stage, upstream: FakeUpstream) -> None:
    script(upstream, "The Librarian", want("cat"), say("A cat."))
    script(upstream, "archivist", want("owl"), say("An owl."))
    with OpenAI(base_url=stage.server.base_url, api_key="any", max_retries=0) as client:
        names = [each.id for each in client.models.list()]
        assert {"clerk", "echo", "The-Librarian", "archivist", "first-model"} <= set(names)
        assert client.responses.create(model="echo", input="Hi").output_text == "You said: Hi"
        for name, text in (("The-Librarian", "A cat."), ("archivist", "An owl.")):
            made = client.responses.create(model=name, input="Which animal?")
            assert [item.type for item in made.output] == ["mcp_call", "message"]
            assert (made.output_text, made.model) == (text, name)
            called: Any = made.output[0]
            assert (called.server_label, called.name, called.status) == (name, "look_up", "completed")
            assert made.usage is not None and made.usage.total_tokens == 14
        with client.responses.stream(model="clerk", input="cat") as stream:
            final = [*stream][-1]
        assert final.type == "response.completed"
        assert [item.type for item in final.response.output] == [
            "reasoning", "message", "mcp_call", "message", "mcp_call", "message",
        ]  # fmt: skip
        assert stage.calls == ["cat", "owl", "cat", "dog"]
        assert client.responses.create(model=upstream.model(say("Me too.")), input="Hi").output_text == "Me too."


def test_a_conversation_with_several_models_is_remembered_by_all(stage: Stage, upstream: FakeUpstream) -> None:
    before = script(upstream, "The Librarian", want("cat"), say("A cat."), say("As I said."))
    script(upstream, "archivist", say("Yes."))
    plain = upstream.model(say("Indeed."))
    conversation = stage.client.new_conversation()
    last: Any = None
    for name, text in (
        ("The-Librarian", "Which?"),
        ("The-Librarian", "Again?"),
        ("archivist", "Really?"),
        (plain, "Hm?"),
    ):
        last = stage.client.create(name, text, conversation=conversation)
        assert last.status == 200
    bodies = [upstream.bodies("for-The Librarian")[before + 2], upstream.bodies("for-archivist")[-1]]
    for body, question in zip([*bodies, *upstream.bodies(plain)], ("Again?", "Really?", "Hm?"), strict=True):
        told = [(message["role"], message.get("content")) for message in body["messages"]]
        assert ("tool", "cat is a word") in told
        assert told[-1][0] == "user" and question in str(told[-1][1])
    following = stage.client.create("echo", "And on", previous_response_id=last.body["id"])
    assert said(following.body) == "You said: And on"


def test_an_agent_is_not_kept_where_it_is_not_stored(stage: Stage) -> None:
    made = stage.client.create("clerk", "canary-of-words", store=False).body
    assert made["status"] == "completed" and "canary-of-words is a word" in said(made)
    assert stage.client.ask("GET", f"/v1/responses/{made['id']}").status == 404
    for file in stage.server.folder.iterdir():
        assert b"canary-of-words" not in file.read_bytes(), file


@pytest.mark.parametrize(("model", "name"), [("The-Librarian", "The Librarian"), ("archivist", "archivist")])
def test_parallel_tools_settings_and_images_reach_the_agents_model(
    stage: Stage, upstream: FakeUpstream, model: str, name: str
) -> None:
    both = [call(0, '{"word": "a"}', "c1", "look_up"), call(1, '{"word": "b"}', "c2", "look_up"), *ending("tool_calls")]
    before = script(upstream, name, both, say("Two."))
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": PIXEL}]
    asked = [{"role": "user", "content": parts}]
    made = stage.client.create(model, asked, temperature=0.3, max_output_tokens=77, instructions="Be kind.").body
    assert shapes(made) == ["mcp_call", "mcp_call", "message"]
    assert sorted(item["output"] for item in made["output"][:2]) == ["a is a word", "b is a word"]
    body = upstream.bodies(f"for-{name}")[before]
    assert body["temperature"] == 0.3
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 77
    assert PIXEL in json.dumps(body["messages"][-1]) and "Be kind." in json.dumps(body["messages"])


@pytest.mark.parametrize(
    ("name", "scripts", "text"),
    [
        ("cataloguer", [say('{"title": "A", "pages": 3}')], '{"title": "A", "pages": 3}'),
        ("filer", [[call(0, '{"name": "x", "box": 3}', "c1", "final_result"), *ending("tool_calls")]], FILED),
    ],
)
def test_a_structured_answer_is_a_text(
    stage: Stage, upstream: FakeUpstream, name: str, scripts: list[Script], text: str
) -> None:
    script(upstream, name, *scripts)
    made = stage.client.create(name, "Which?").body
    assert (shapes(made), said(made)) == (["message"], text)


def test_a_handoff_happens_inside(stage: Stage, upstream: FakeUpstream) -> None:
    script(upstream, "triage", [call(0, "{}", "call_0", "transfer_to_expert"), *ending("tool_calls")])
    script(upstream, "expert", want("cat"), say("Handed over."))
    made = stage.client.create("triage", "Who knows?").body
    assert (shapes(made), said(made)) == (["mcp_call", "message"], "Handed over.")


def test_a_guardrail_ends_the_response_and_says_its_name(stage: Stage, upstream: FakeUpstream) -> None:
    script(upstream, "guarded", say("Hello."))
    assert said(stage.client.create("guarded", "Hello, please.").body) == "Hello."
    stopped = stage.client.create("guarded", "canary: give!").body
    assert "InputGuardrailTripwireTriggered" in stopped["error"]["message"]
    assert "canary" not in json.dumps(stopped)


def test_the_output_of_a_tool_can_be_the_answer(stage: Stage, upstream: FakeUpstream) -> None:
    script(upstream, "pointer", want("owl"))
    made = stage.client.create("pointer", "Which?").body
    assert (shapes(made), said(made)) == (["mcp_call", "message"], "owl is a word")


def test_a_tool_that_wants_approval_ends_the_response_with_a_reason(stage: Stage, upstream: FakeUpstream) -> None:
    script(upstream, "cautious", want("owl", tool="burn"))
    assert "approval" in stage.client.create("cautious", "Burn it.").body["error"]["message"]


def test_a_tool_that_fails_or_asks_again_is_a_step_like_any_other(stage: Stage, upstream: FakeUpstream) -> None:
    script(upstream, "clumsy", want("x", tool="stumble"), say("It failed."))
    assert said(stage.client.create("clumsy", "Go.").body) == "It failed."
    script(upstream, "seeker", want("too long", tool="search"), want("cat", "call_2", "search"), say("Found."))
    retried = stage.client.create("seeker", "Find.").body
    assert [item["status"] for item in retried["output"]] == ["failed", "completed", "completed"]
    script(upstream, "faller", want("x", tool="stumble"))
    broken = stage.client.create("faller", "Go.").body
    assert (broken["status"], broken["output"][0]["status"]) == ("incomplete", "failed")


@pytest.mark.parametrize("name", ["silent", "absent"])
def test_an_agent_that_says_nothing_gives_an_empty_answer(stage: Stage, name: str) -> None:
    made = stage.client.create(name, "Hi").body
    assert (made["status"], shapes(made), said(made)) == ("completed", ["message"], "")


def test_calls_of_a_function_may_run_side_by_side(stage: Stage) -> None:
    made = stage.client.create("two_at_once", "Hi").body
    assert shapes(made) == ["mcp_call", "mcp_call", "message"]
    assert said(made) == "cat is a word; dog is a word"


def test_an_agent_that_breaks_ends_its_response_and_tells_no_secrets(stage: Stage) -> None:
    ended = stage.client.create("broken", "Hi").body
    assert (ended["status"], ended["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert said(ended) == "So far " and "canary" not in json.dumps(ended)
    assert "Ask me tomorrow." in stage.client.create("complaining", "Hi").body["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://example.com/mcp"}]}, "tools[0].type"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_an_agent_cannot_do_is_refused_by_name(stage: Stage, fields: dict[str, Any], param: str) -> None:
    refused = stage.client.create("echo", "Hi", **fields)
    assert (refused.status, refused.body["error"]["param"]) == (400, param)


def test_cancelling_stops_the_agent_in_the_middle_of_its_tool(stage: Stage) -> None:
    stage.gate.unlink()
    response_id = stage.client.start("clerk", "cat")
    wait_until(lambda: stage.calls == ["cat"], "the tool runs")
    cancelled = stage.client.ask("POST", f"/v1/responses/{response_id}/cancel").body
    assert cancelled["status"] == "cancelled"
    stage.gate.touch()
    check_ended(stage.client, response_id)
    assert stage.calls == ["cat"]


def test_an_agent_that_will_not_stop_keeps_neither_its_response_nor_the_server(tmp_path: Any) -> None:
    with FakeUpstream() as upstream:
        stage = Stage(tmp_path, upstream)
        server = stage.start("endless")
        response_id = stage.client.start("endless", "Hi")
        wait_until(lambda: said(stage.client.get(response_id)) == "On ", "it speaks")
        assert stage.client.ask("POST", f"/v1/responses/{response_id}/cancel").body["status"] == "cancelled"
        wait_until(lambda: "told-to-stop" in stage.calls, "it was told to stop")
        assert server.terminate(wait=False) is None
        assert server.wait_exit(10) == 0
        stage.stop()
