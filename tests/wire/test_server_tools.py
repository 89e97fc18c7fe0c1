"""Server tools on the wire: clients see their calls, and leave them to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, RunConfig, Runner, Tool
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI, BadRequestError, OpenAI

from tests.support.http_client import HttpClient, event_of
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, HANG, FakeUpstream, Json, Script, call, ending, say, text, usage

MODULE = '''
import asyncio
import time

from outlive.tools import ToolContext, ToolError, tool


@tool(read_only=True)
def weather(city: str, days: int = 1) -> dict:
    """Tells the weather.

    Args:
        city: Where to look.
    """
    if city == "Atlantis":
        raise ToolError("There is no such city.")
    return {"city": city, "degrees": 18 + days}


@tool(seconds=0.2)
async def nap(seconds: float) -> str:
    """Sleeps."""
    await asyncio.sleep(seconds)
    return "slept"


@tool
def count(to: int, context: ToolContext) -> str:
    """Counts."""
    for n in range(to):
        context.report(f"at {n}", progress=n, total=to)
    return str(to)
'''

OURS: Any = {"type": "mcp", "server_label": "outlive"}
PARIS: Script = [text("Let me see. "), call(0, '{"city": "Paris"}', "call_1", "weather"), *ending("tool_calls")]


@pytest.fixture(scope="module")
def toolful(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[OutliveServer]:
    folder: Path = tmp_path_factory.mktemp("toolful")
    (folder / "wire_tools.py").write_text(MODULE)
    with OutliveServer(folder, upstream.url, "--tools", "wire_tools") as running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def sdk(toolful: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=toolful.base_url, api_key="any", max_retries=0) as opened:
        yield opened


def test_the_sdk_streams_a_response_of_several_steps(sdk: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(PARIS, say("It is", " 19."))
    with sdk.responses.stream(model=model, input="Weather?", tools=[OURS]) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "mcp_call", "message"]
    made: Any = final.output[1]
    assert (made.name, made.server_label, made.status) == ("weather", "outlive", "completed")
    assert (made.arguments, made.output, made.error) == ('{"city": "Paris"}', '{"city":"Paris","degrees":19}', None)
    assert final.output_text == "Let me see. It is 19."
    assert types.count("response.mcp_call.completed") == 1
    retrieved = sdk.responses.retrieve(final.id)
    assert [item.type for item in retrieved.output] == [item.type for item in final.output]
    assert retrieved.usage == final.usage
    assert final.usage is not None
    assert final.usage.total_tokens == 14


@pytest.mark.parametrize("options", [{}, {"store": False}, {"background": True}])
def test_every_mode_returns_the_same_items(sdk: OpenAI, upstream: FakeUpstream, options: dict[str, Any]) -> None:
    made = sdk.responses.create(model=upstream.model(PARIS, say("19.")), input="Hi", tools=[OURS], **options)
    if options.get("background"):
        made = sdk.responses.retrieve(made.id, extra_query={"wait": "20"})
    assert made.status == "completed"
    assert [item.type for item in made.output] == ["message", "mcp_call", "message"]


def test_the_model_receives_the_tools_and_their_outputs(sdk: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(PARIS, say("19."))
    only: Any = {**OURS, "allowed_tools": ["weather"]}
    sdk.responses.create(model=model, input="Hi", tools=[only])
    first, second = upstream.bodies(model)
    (function,) = [tool["function"] for tool in first["tools"]]
    assert (function["name"], function["description"]) == ("weather", "Tells the weather.")
    assert function["parameters"]["properties"]["city"] == {"type": "string", "description": "Where to look."}
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["content"] == "Let me see. "
    assert second["messages"][2]["content"] == '{"city":"Paris","degrees":19}'


def test_the_next_turn_includes_the_calls(sdk: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(PARIS, say("19."), say("As I said."))
    conversation = sdk.conversations.create()
    sdk.responses.create(model=model, input="Hi", tools=[OURS], conversation=conversation.id)
    sdk.responses.create(model=model, input="And?", conversation=conversation.id)
    roles = [message["role"] for message in upstream.bodies(model)[2]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    items = sdk.conversations.items.list(conversation.id, order="asc").data
    assert [item.type for item in items] == ["message", "message", "mcp_call", "message", "message", "message"]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("weather", '{"city": "Atlantis"}', "There is no such city."),
        ("weather", '{"town": "Paris"}', "unknown field `town`"),
        ("nap", '{"seconds": 30}', "took longer than 0.2 s"),
    ],
)
def test_a_failed_call_is_an_item_and_the_model_continues(
    sdk: OpenAI, upstream: FakeUpstream, name: str, arguments: str, error: str
) -> None:
    model = upstream.model([call(0, arguments, "call_1", name), *ending("tool_calls")], say("Sorry."))
    made = sdk.responses.create(model=model, input="Hi", tools=[OURS])
    failed: Any = made.output[0]
    assert (made.status, failed.status, failed.output) == ("completed", "failed", None)
    assert error in failed.error.content[0]["text"]
    assert error in upstream.bodies(model)[1]["messages"][-1]["content"]


def test_progress_events_are_streamed_and_ignored_by_the_sdk(sdk: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model([call(0, '{"to": 3}', "call_1", "count"), *ending("tool_calls")], say("3."))
    with sdk.responses.stream(model=model, input="Hi", tools=[OURS]) as stream:
        received: list[Any] = [event for event in stream if str(event.type) == "outlive:tool.progress"]
        final = stream.get_final_response()
    assert [each.message for each in received] == ["at 0", "at 1", "at 2"]
    numbers = [each.sequence_number for each in received]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert final.output_text == "3."


def test_server_and_client_calls_of_one_step_are_both_answered(sdk: OpenAI, upstream: FakeUpstream) -> None:
    both: Script = [
        call(0, '{"city": "Paris"}', "call_1", "weather"),
        call(1, '{"x": 1}', "call_2", "mine"),
        *ending("tool_calls"),
    ]
    mine: Any = {"type": "function", "name": "mine", "parameters": {"type": "object"}, "strict": False}
    model = upstream.model(both, say("Both."))
    first = sdk.responses.create(model=model, input="Hi", tools=[OURS, mine])
    assert [item.type for item in first.output] == ["mcp_call", "function_call"]
    assert len(upstream.calls(model)) == 1
    second = sdk.responses.create(
        model=model,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": "call_2", "output": "ok"}],
        tools=[OURS, mine],
    )
    assert second.output_text == "Both."
    outputs = [message["content"] for message in upstream.bodies(model)[1]["messages"] if message["role"] == "tool"]
    assert outputs == ['{"city":"Paris","degrees":19}', "ok"]


@pytest.mark.parametrize("approve", [True, False])
def test_a_call_waits_for_its_approval(sdk: OpenAI, upstream: FakeUpstream, approve: bool) -> None:
    model = upstream.model(PARIS, say("Well."))
    tools: Any = [{**OURS, "require_approval": "always"}]
    first = sdk.responses.create(model=model, input="Hi", tools=tools)
    asked: Any = first.output[1]
    assert (first.status, asked.type, asked.name) == ("completed", "mcp_approval_request", "weather")
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}
    second = sdk.responses.create(model=model, previous_response_id=first.id, input=[answer], tools=tools)
    assert [item.type for item in second.output] == (["mcp_call", "message"] if approve else ["message"])
    output = upstream.bodies(model)[1]["messages"][-1]["content"]
    assert output == '{"city":"Paris","degrees":19}' if approve else "did not approve" in output


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "mcp", "server_label": "nobody"}], "tools[0].server_label"),
        ([OURS, OURS], "tools[1].server_label"),
        ([{**OURS, "allowed_tools": ["rain"]}], "tools[0].allowed_tools"),
        ([{"type": "mcp"}], "tools[0].server_label"),
        ([{**OURS, "require_approval": "perhaps"}], "tools[0].require_approval"),
    ],
)
def test_unknown_server_tools_are_refused(sdk: OpenAI, tools: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        sdk.responses.create(model="m", input="Hi", tools=tools)
    assert refused.value.param == param


def test_secrets_are_not_echoed(toolful: OutliveServer, upstream: FakeUpstream) -> None:
    entry = {**OURS, "headers": {"x-key": "canary"}, "authorization": "canary"}
    with HttpClient(toolful.port) as http:
        answer = http.post("/v1/responses", {"model": upstream.model(say("Hi")), "input": "Hi", "tools": [entry]})
        assert answer.status == 200
        assert answer.json()["tools"] == [OURS]
        assert b"canary" not in answer.body


def test_a_cancelled_response_reports_the_usage_of_its_finished_steps(
    toolful: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(PARIS, [text("It is"), HANG])
    with HttpClient(toolful.port) as http, HttpClient(toolful.port) as other:
        stream = http.stream(model, tools=[OURS])
        stream.read_until(lambda event: event.get("delta") == "It is")
        cancelled = other.post(f"/v1/responses/{stream.id}/cancel").json()
        assert (cancelled["status"], counts(cancelled)) == ("cancelled", (5, 2, 7))
        stream.read_all()
        assert event_of(stream.frames[-1])["response"] == cancelled


@pytest.mark.parametrize("store", [True, False])
def test_an_interrupted_response_reports_the_usage_of_its_finished_steps(
    toolful: OutliveServer, upstream: FakeUpstream, store: bool
) -> None:
    model = upstream.model(PARIS, PARIS, [text("It is"), CUT])
    with HttpClient(toolful.port) as http:
        final = http.create(model, tools=[OURS], store=store).json()
    assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert counts(final) == (10, 4, 14)


def test_usage_reported_before_a_stream_breaks_is_counted(toolful: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(PARIS, [text("It is"), usage(8, 1), CUT])
    with HttpClient(toolful.port) as http:
        final = http.create(model, tools=[OURS]).json()
    assert (final["status"], counts(final)) == ("incomplete", (13, 3, 16))


def test_usage_that_is_not_known_stays_null(toolful: OutliveServer, upstream: FakeUpstream) -> None:
    with HttpClient(toolful.port) as http:
        final = http.create(upstream.model([text("It is"), CUT]), tools=[OURS]).json()
    assert (final["status"], final["usage"]) == ("incomplete", None)


def counts(response: Json) -> tuple[int, int, int]:
    """Return the input, output and total tokens of a response."""
    used = response["usage"]
    return used["input_tokens"], used["output_tokens"], used["total_tokens"]


def test_the_agents_sdk_leaves_server_tools_to_the_server(toolful: OutliveServer, upstream: FakeUpstream) -> None:
    """It neither runs the calls itself nor fails on them in its history."""
    model = upstream.model(PARIS, say("It is 19."), say("Bye."))

    async def go() -> list[Json]:
        async with AsyncOpenAI(base_url=toolful.base_url, api_key="any", max_retries=0) as client:
            tools: list[Tool] = [HostedMCPTool(tool_config=OURS)]
            agent = Agent(name="a", model=OpenAIResponsesModel(model, client), tools=tools)
            config = RunConfig(tracing_disabled=True)
            first = await Runner.run(agent, "Weather?", run_config=config)
            assert first.final_output == "It is 19."
            second = await Runner.run(
                agent, [*first.to_input_list(), {"role": "user", "content": "Bye"}], run_config=config
            )
            assert second.final_output == "Bye."
        return upstream.bodies(model)

    bodies = asyncio.run(go())
    assert [message["role"] for message in bodies[2]["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
