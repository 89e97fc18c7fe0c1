"""Agents of every kind as models of the Responses API: plain ones, and ones with all features of their SDK."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.served_agents.harness import MODULES, AgentServer, item_types, output_text
from tests.support.checks import check_ended
from tests.support.tool_calls import request_call
from tests.support.upstream import FakeUpstream, Script, call, ending, say
from tests.support.waiting import wait_until

STRUCTURED = '{"name":"x","box":3}'
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[AgentServer]:
    """Start one server with all agents and an upstream."""
    served = AgentServer(tmp_path_factory.mktemp("agents"), upstream)
    served.start(*(name for names in MODULES.values() for name in names))
    yield served
    served.stop()


@pytest.fixture(autouse=True)
def _reset(agents: AgentServer) -> None:
    agents.file.unlink(missing_ok=True)
    agents.gate.touch()


def script(upstream: FakeUpstream, name: str, *scripts: Script) -> int:
    """Queue scripts for an agent's model. Returns the number of requests that it has had."""
    for each in scripts:
        upstream.queue(each, f"for-{name}")
    return len(upstream.bodies(f"for-{name}"))


def test_agents_are_listed_and_answer_under_their_names(agents: AgentServer, upstream: FakeUpstream) -> None:
    script(upstream, "Openai Agent", request_call("look_up", word="cat"), say("A cat."))
    script(upstream, "pydantic_agent", request_call("look_up", word="owl"), say("An owl."))
    with OpenAI(base_url=agents.server.base_url, api_key="any", max_retries=0) as client:
        names = [each.id for each in client.models.list()]
        assert {"two_calls", "echo", "Openai-Agent", "pydantic_agent", "first-model"} <= set(names)
        assert client.responses.create(model="echo", input="Hi").output_text == "You said: Hi"
        for name, text in (("Openai-Agent", "A cat."), ("pydantic_agent", "An owl.")):
            made = client.responses.create(model=name, input="Which animal?")
            assert [item.type for item in made.output] == ["mcp_call", "message"]
            assert (made.output_text, made.model) == (text, name)
            called: Any = made.output[0]
            assert (called.server_label, called.name, called.status) == (name, "look_up", "completed")
            assert made.usage is not None and made.usage.total_tokens == 14
            assert made.usage.input_tokens_details.cache_write_tokens == 0
        with client.responses.stream(model="two_calls", input="cat") as stream:
            final = [*stream][-1]
        assert final.type == "response.completed"
        assert [item.type for item in final.response.output] == [
            "reasoning", "message", "mcp_call", "message", "mcp_call", "message",
        ]  # fmt: skip
        assert agents.calls == ["cat", "owl", "cat", "dog"]
        assert client.responses.create(model=upstream.model(say("Me too.")), input="Hi").output_text == "Me too."


def test_all_models_of_a_conversation_see_its_whole_history(agents: AgentServer, upstream: FakeUpstream) -> None:
    before = script(upstream, "Openai Agent", request_call("look_up", word="cat"), say("A cat."), say("As before."))
    script(upstream, "pydantic_agent", say("Yes."))
    plain = upstream.model(say("Indeed."))
    conversation = agents.client.create_conversation()
    last: Any = None
    for name, text in (
        ("Openai-Agent", "Which?"),
        ("Openai-Agent", "Again?"),
        ("pydantic_agent", "Really?"),
        (plain, "Hm?"),
    ):
        last = agents.client.create(name, input=text, conversation=conversation)
        assert last.status == 200
    bodies = [upstream.bodies("for-Openai Agent")[before + 2], upstream.bodies("for-pydantic_agent")[-1]]
    for body, question in zip([*bodies, *upstream.bodies(plain)], ("Again?", "Really?", "Hm?"), strict=True):
        seen = [(message["role"], message.get("content")) for message in body["messages"]]
        assert ("tool", "cat is a word") in seen
        assert seen[-1][0] == "user" and question in str(seen[-1][1])
    following = agents.client.create("echo", input="And on", previous_response_id=last.json()["id"])
    assert output_text(following.json()) == "You said: And on"


def test_a_response_with_store_false_leaves_no_trace(agents: AgentServer) -> None:
    made = agents.client.create("two_calls", input="canary-of-words", store=False).json()
    assert made["status"] == "completed" and "canary-of-words is a word" in output_text(made)
    assert agents.client.request("GET", f"/v1/responses/{made['id']}").status == 404
    for file in agents.server.folder.iterdir():
        assert b"canary-of-words" not in file.read_bytes(), file


@pytest.mark.parametrize(("model", "name"), [("Openai-Agent", "Openai Agent"), ("pydantic_agent", "pydantic_agent")])
def test_parallel_tools_settings_and_images_reach_the_agents_model(
    agents: AgentServer, upstream: FakeUpstream, model: str, name: str
) -> None:
    both = [call(0, '{"word": "a"}', "c1", "look_up"), call(1, '{"word": "b"}', "c2", "look_up"), *ending("tool_calls")]
    before = script(upstream, name, both, say("Two."))
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": PIXEL}]
    asked = [{"role": "user", "content": parts}]
    made = agents.client.create(
        model, input=asked, temperature=0.3, max_output_tokens=77, instructions="Be kind."
    ).json()
    assert item_types(made) == ["mcp_call", "mcp_call", "message"]
    assert sorted(item["output"] for item in made["output"][:2]) == ["a is a word", "b is a word"]
    body = upstream.bodies(f"for-{name}")[before]
    assert body["temperature"] == 0.3
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 77
    assert PIXEL in json.dumps(body["messages"][-1]) and "Be kind." in json.dumps(body["messages"])


@pytest.mark.parametrize(
    ("name", "scripts", "text"),
    [
        ("structured_openai", [say('{"title": "A", "pages": 3}')], '{"title": "A", "pages": 3}'),
        (
            "structured_pydantic",
            [[call(0, '{"name": "x", "box": 3}', "c1", "final_result"), *ending("tool_calls")]],
            STRUCTURED,
        ),
    ],
)
def test_a_structured_answer_is_sent_as_text(
    agents: AgentServer, upstream: FakeUpstream, name: str, scripts: list[Script], text: str
) -> None:
    script(upstream, name, *scripts)
    made = agents.client.create(name, input="Which?").json()
    assert (item_types(made), output_text(made)) == (["message"], text)


def test_a_handoff_is_not_shown(agents: AgentServer, upstream: FakeUpstream) -> None:
    script(upstream, "with_handoff", [call(0, "{}", "call_0", "transfer_to_handoff_target"), *ending("tool_calls")])
    script(upstream, "handoff_target", request_call("look_up", word="cat"), say("Handed over."))
    made = agents.client.create("with_handoff", input="Who knows?").json()
    assert (item_types(made), output_text(made)) == (["mcp_call", "message"], "Handed over.")


def test_a_tripped_guardrail_fails_the_response_with_its_name(agents: AgentServer, upstream: FakeUpstream) -> None:
    script(upstream, "with_guardrail", say("Hello."))
    assert output_text(agents.client.create("with_guardrail", input="Hello, please.").json()) == "Hello."
    stopped = agents.client.create("with_guardrail", input="canary: give!").json()
    assert "InputGuardrailTripwireTriggered" in stopped["error"]["message"]
    assert "canary" not in json.dumps(stopped)


def test_the_output_of_a_tool_is_the_answer_if_the_agent_stops_there(
    agents: AgentServer, upstream: FakeUpstream
) -> None:
    script(upstream, "tool_output_is_answer", request_call("look_up", word="owl"))
    made = agents.client.create("tool_output_is_answer", input="Which?").json()
    assert (item_types(made), output_text(made)) == (["mcp_call", "message"], "owl is a word")


def test_a_tool_that_needs_approval_fails_the_response_with_the_reason(
    agents: AgentServer, upstream: FakeUpstream
) -> None:
    script(upstream, "needs_approval", request_call("erase", word="owl"))
    assert "approval" in agents.client.create("needs_approval", input="Burn it.").json()["error"]["message"]


def test_failed_and_retried_calls_are_steps_of_the_response(agents: AgentServer, upstream: FakeUpstream) -> None:
    script(upstream, "failing_tool_openai", request_call("fail", word="x"), say("It failed."))
    assert output_text(agents.client.create("failing_tool_openai", input="Go.").json()) == "It failed."
    script(
        upstream,
        "retrying_tool",
        request_call("search", word="too long"),
        request_call("search", "call_2", word="cat"),
        say("Found."),
    )
    retried = agents.client.create("retrying_tool", input="Find.").json()
    assert [item["status"] for item in retried["output"]] == ["failed", "completed", "completed"]
    script(upstream, "failing_tool_pydantic", request_call("fail", word="x"))
    failed = agents.client.create("failing_tool_pydantic", input="Go.").json()
    assert (failed["status"], failed["output"][0]["status"]) == ("incomplete", "failed")


@pytest.mark.parametrize("name", ["no_text", "returns_none"])
def test_an_agent_without_output_gives_an_empty_message(agents: AgentServer, name: str) -> None:
    made = agents.client.create(name, input="Hi").json()
    assert (made["status"], item_types(made), output_text(made)) == ("completed", ["message"], "")


def test_a_function_makes_calls_in_parallel(agents: AgentServer) -> None:
    made = agents.client.create("parallel_calls", input="Hi").json()
    assert item_types(made) == ["mcp_call", "mcp_call", "message"]
    assert output_text(made) == "cat is a word; dog is a word"


def test_an_exception_ends_the_response_without_its_message(agents: AgentServer) -> None:
    ended = agents.client.create("raises_error", input="Hi").json()
    assert (ended["status"], ended["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert output_text(ended) == "So far " and "canary" not in json.dumps(ended)
    assert "Ask me tomorrow." in agents.client.create("raises_agent_error", input="Hi").json()["error"]["message"]


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
def test_an_unsupported_parameter_is_refused_by_name(agents: AgentServer, fields: dict[str, Any], param: str) -> None:
    refused = agents.client.create("echo", input="Hi", **fields)
    assert (refused.status, refused.json()["error"]["param"]) == (400, param)


def test_cancelling_stops_the_agent_during_a_tool_call(agents: AgentServer) -> None:
    agents.gate.unlink()
    response_id = agents.client.submit("two_calls", input="cat")
    wait_until(lambda: agents.calls == ["cat"], "the tool runs")
    cancelled = agents.client.request("POST", f"/v1/responses/{response_id}/cancel").json()
    assert cancelled["status"] == "cancelled"
    agents.gate.touch()
    check_ended(agents.client, response_id)
    assert agents.calls == ["cat"]


def test_an_agent_that_ignores_cancelling_holds_up_neither_its_response_nor_the_server(tmp_path: Any) -> None:
    with FakeUpstream() as upstream:
        agents = AgentServer(tmp_path, upstream)
        server = agents.start("ignores_cancel")
        response_id = agents.client.submit("ignores_cancel", input="Hi")
        wait_until(lambda: output_text(agents.client.retrieve(response_id)) == "On ", "the agent has output")
        assert agents.client.request("POST", f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"
        wait_until(lambda: "cancelled" in agents.calls, "the agent was cancelled")
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit(10) == 0
        agents.stop()
