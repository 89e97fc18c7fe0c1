"""A reopened run repeats nothing: turns are attached to, recorded tools are not called again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agents import (
    Agent,
    LocalShellTool,
    ModelSettings,
    RunConfig,
    RunHooks,
    SQLiteSession,
    ToolOutputImage,
    UserError,
    function_tool,
)
from agents.mcp import MCPServer
from agents.memory import OpenAIConversationsSession
from agents.models.openai_provider import OpenAIProvider
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai import AsyncOpenAI, NotFoundError

from outlive.agents import (
    DurableProvider,
    DurableResponsesModel,
    DurableRun,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
)
from outlive.agents.journal import pack, unpack
from tests.agents.harness import connect, list_responses, make_agent, wait_status
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, FakeUpstream, Gate, Refuse, Step, call, ending, say, text

Script = Callable[[DurableRun, AsyncOpenAI], Awaitable[Any]]


def calling(*names: str, prefix: str = "call") -> list[Step]:
    """Script a turn that calls tools."""
    pieces = [call(number, "{}", id=f"{prefix}_{number}", name=name) for number, name in enumerate(names)]
    return [*pieces, *ending("tool_calls")]


def execute(
    server: OutliveServer, script: Script, token: str | None = None, until: Gate | None = None
) -> tuple[str, Any]:
    """Run a script with a client of its own: to its end, or cancel it when the gate is reached."""

    async def run() -> tuple[str, Any]:
        async with connect(server.base_url) as client:
            opened = await DurableRun.open(client, token)
            task = asyncio.ensure_future(script(opened, client))
            if until is None:
                return opened.token, await task
            reached = asyncio.ensure_future(asyncio.to_thread(until.wait_reached))
            await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await reached
            return opened.token, None

    return asyncio.run(run())


class CountingTool:
    """A tool that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def tool(self, name: str = "ring") -> Any:
        @function_tool(name_override=name)
        def ring() -> str:
            self.count += 1
            return f"rung {self.count}"

        return ring


def test_finished_run_returns_its_result_again(server: OutliveServer, upstream: FakeUpstream) -> None:
    counter, model = CountingTool(), upstream.model(calling("ring"), say("Rung."))

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        return (await run.run(make_agent(model, counter.tool()), "Ring")).final_output

    token, first = execute(server, script)
    _, again = execute(server, script, token)
    assert (first, again) == ("Rung.", "Rung.")
    assert counter.count == 1 and len(upstream.calls(model)) == 2


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("state", ["inline", "conversation", "auto", "session", "server session"])
def test_running_turn_is_attached_to(server: OutliveServer, upstream: FakeUpstream, state: str, streamed: bool) -> None:
    gate, counter = Gate(), CountingTool()
    model = upstream.model(say("Hello."), calling("ring"), [gate, *say("Rung.")], say("Bye."))
    kept: dict[str, Any] = {"auto": {"auto_previous_response_id": True}, "inline": {}}.get(state, {})
    kept |= {"session": SQLiteSession("s")} if state == "session" else {}

    async def prepare(_: DurableRun, client: AsyncOpenAI) -> None:
        if state in ("conversation", "server session"):
            made = await client.conversations.create(items=[{"role": "user", "content": "Earlier."}])
            kept["conversation_id"] = made.id
        elif state == "session":
            await kept["session"].add_items([{"role": "user", "content": "Earlier."}])

    async def script(run: DurableRun, client: AsyncOpenAI) -> Any:
        agent = make_agent(model, counter.tool())
        more = dict(kept)
        if state == "server session":
            more = {
                "session": OpenAIConversationsSession(conversation_id=kept["conversation_id"], openai_client=client)
            }
        answers = [(await run.run(agent, "Hello", **more)).final_output]
        if streamed:
            result: Any = await run.run_streamed(agent, "Ring", **more)
            async for _ in result.stream_events():
                pass
        else:
            result = await run.run(agent, "Ring", **more)
        answers.append(result.final_output)
        return answers

    execute(server, prepare)
    token, _ = execute(server, script, until=gate)
    gate.open()
    _, answers = execute(server, script, token)
    assert answers == ["Hello.", "Rung."]
    assert counter.count == 1
    assert len(upstream.calls(model)) == 3, "one call for each turn"
    if state != "inline":
        users = [each["content"] for each in upstream.calls(model)[2].messages if each["role"] == "user"]
        heard = "\n\n".join(users).split("\n\n")  # the server merges consecutive messages of one role
        expected = {"auto": ["Ring"]}.get(state, ["Earlier.", "Hello", "Ring"])
        assert heard == expected, "nothing is missing and nothing is there twice"
    if state == "session":
        kinds = [each.get("role") or each.get("type") for each in asyncio.run(kept["session"].get_items())]
        tool = ["function_call", "function_call_output"]
        assert kinds == ["user", "user", "assistant", "user", *tool, "assistant"]
        kept["session"].close()


def test_recorded_tools_are_not_called_again_and_unfinished_ones_are(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    stuck, counter, recorded = Gate(), CountingTool(), asyncio.Event()
    model = upstream.model(calling("ring", "wait"), say("Both."))
    waits = []

    @function_tool
    async def wait() -> str:
        waits.append(1)
        if len(waits) == 1:
            await stuck.wait_open()
        return "waited"

    class SetEvent(RunHooks[Any]):
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            recorded.set()

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        agent = make_agent(model, counter.tool(), wait)
        return (await run.run(agent, "Go", hooks=SetEvent())).final_output

    async def cancel_after_the_first_record() -> str:
        async with connect(server.base_url) as client:
            run = await DurableRun.open(client)
            task = asyncio.ensure_future(script(run, client))
            await recorded.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return run.token

    token = asyncio.run(cancel_after_the_first_record())
    assert execute(server, script, token)[1] == "Both."
    assert counter.count == 1, "it was recorded"
    assert len(waits) == 2, "it had not returned"
    outputs = [each["content"] for each in upstream.calls(model)[1].messages if each["role"] == "tool"]
    assert outputs == ["rung 1", "waited"]


def test_recorded_turns_are_attached_to_even_if_the_instructions_change(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    gate, counter = Gate(), CountingTool()
    model = upstream.model(calling("ring"), [gate, *say("Rung.")])
    days = iter(range(100))

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        agent = Agent(name="a", instructions=lambda _, __: f"Day {next(days)}", model=model, tools=[counter.tool()])
        return (await run.run(agent, "Ring")).final_output

    token, _ = execute(server, script, until=gate)
    gate.open()
    assert execute(server, script, token)[1] == "Rung."
    assert counter.count == 1 and len(upstream.calls(model)) == 2


def test_agents_as_tools_and_handoffs_are_part_of_the_run(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate, counter = Gate(), CountingTool()
    helper_model = upstream.model(calling("ring", prefix="inner"), [gate, *say("Helped.")])
    model = upstream.model(
        [call(0, '{"input": "go"}', id="outer", name="help"), *ending("tool_calls")],
        calling("transfer_to_last", prefix="over"),
    )
    last_model = upstream.model(calling("ring", prefix="last"), say("The end."))

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        helper = Agent(name="Helper", model=helper_model, tools=[counter.tool()])
        last = Agent(name="Last", model=last_model, tools=[counter.tool()])
        first = Agent(
            name="First", model=model, tools=[run.recorded(helper).as_tool("help", "Helps.")], handoffs=[last]
        )
        last.handoffs = [first]
        result = await run.run(first, "Go")
        return result.final_output, result.last_agent.name

    token, _ = execute(server, script, until=gate)
    gate.open()
    assert execute(server, script, token)[1] == ("The end.", "Last")
    assert execute(server, script, token)[1] == ("The end.", "Last")
    assert counter.count == 2
    assert [len(upstream.calls(each)) for each in (helper_model, model, last_model)] == [2, 2, 2]


class FakeMcpServer(MCPServer):
    """An MCP server with one tool that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.called = 0

    @property
    def name(self) -> str:
        return "mcp_server"

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        return [MCPTool(name="dig", input_schema={"type": "object", "properties": {}})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.called += 1
        return CallToolResult(content=[TextContent(type="text", text="dug")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


def test_tools_of_mcp_servers_are_recorded(server: OutliveServer, upstream: FakeUpstream) -> None:
    mcp_server, model = FakeMcpServer(), upstream.model(calling("dig"), say("Dug."))

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        return (await run.run(Agent(name="a", model=model, mcp_servers=[mcp_server]), "Dig")).final_output

    token, _ = execute(server, script)
    assert execute(server, script, token)[1] == "Dug."
    assert mcp_server.called == 1


# -- endings


def test_failed_turn_is_submitted_again(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(400)], say("Now."))

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        return (await run.run(make_agent(model), "Hello")).final_output

    async def token() -> str:
        async with connect(server.base_url) as client:
            run = await DurableRun.open(client)
            with pytest.raises(ResponseFailed):
                await script(run, client)
            return run.token

    assert execute(server, script, asyncio.run(token()))[1] == "Now."
    assert len(upstream.calls(model)) == 2


@pytest.mark.parametrize("in_conversation", [False, True])
def test_interrupted_turn_is_submitted_again_unless_a_conversation_keeps_it(
    server: OutliveServer, upstream: FakeUpstream, in_conversation: bool
) -> None:
    model = upstream.model([text("Half"), CUT], say("Whole."))
    kept: dict[str, Any] = {}

    async def script(run: DurableRun, client: AsyncOpenAI) -> Any:
        if in_conversation and not kept:
            kept["conversation_id"] = (await client.conversations.create()).id
        try:
            return (await run.run(make_agent(model), "Hello", **kept)).final_output
        except ResponseIncomplete as error:
            return error.response.output_text

    token, first = execute(server, script)
    _, again = execute(server, script, token)
    assert (first, again) == ("Half", "Half" if in_conversation else "Whole.")
    assert len(upstream.calls(model)) == (1 if in_conversation else 2)


def test_cancelled_turn_stays_cancelled(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Never.")])

    async def script(run: DurableRun, _: AsyncOpenAI) -> Any:
        return (await run.run(make_agent(model), "Hello")).final_output

    async def stop(_: DurableRun, client: AsyncOpenAI) -> None:
        await client.responses.cancel(wait_status(server, model, "in_progress").id)

    token, _ = execute(server, script, until=gate)
    execute(server, stop)
    with pytest.raises(ResponseCancelled):
        execute(server, script, token)
    assert len(upstream.calls(model)) == 1


def test_forgotten_run_cannot_be_opened(server: OutliveServer) -> None:
    async def forget(run: DurableRun, _: AsyncOpenAI) -> None:
        await run.forget()

    token, _ = execute(server, forget)
    with pytest.raises(NotFoundError):
        execute(server, forget, token)


# -- refusals


def test_unrecordable_models_and_tools_are_refused(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model()

    async def script(run: DurableRun, client: AsyncOpenAI) -> None:
        plain = OpenAIProvider(openai_client=client)
        shell = LocalShellTool(executor=lambda _: "")
        for agent, config in (
            (make_agent(model), RunConfig(model_provider=plain)),
            (Agent(name="a", model=plain.get_model(model)), RunConfig()),
            (make_agent(model, shell), RunConfig()),
            (make_agent(model, background=False), RunConfig()),
            (make_agent(model, settings=ModelSettings(extra_headers={"idempotency-key": "mine"})), RunConfig()),
        ):
            with pytest.raises(UserError):
                await run.run(agent, "Hello", run_config=config)

    execute(server, script)
    assert upstream.calls(model) == [] and list_responses(server, model) == []


def test_models_and_providers_of_the_caller_are_used_and_not_changed(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("One."), say("Two."), say("Three."))

    async def script(run: DurableRun, client: AsyncOpenAI) -> Any:
        own = Agent(name="a", model=DurableResponsesModel(model, client, background_max_wait_seconds=5))
        config = RunConfig(model_provider=DurableProvider(client, background_max_wait_seconds=5))
        answers = [(await run.run(own, "Hello")).final_output]
        answers.append((await run.run(make_agent(model), "Hello", run_config=config)).final_output)
        written: dict[str, Any] = {"model_provider": config.model_provider}
        answers.append((await run.run(make_agent(model), "Hello", run_config=written)).final_output)
        assert type(own) is Agent and type(own.model) is DurableResponsesModel, "the caller's own are left as they are"
        return answers

    token, answers = execute(server, script)
    assert execute(server, script, token)[1] == answers == ["One.", "Two.", "Three."]
    assert len(upstream.calls(model)) == 3


@pytest.mark.parametrize(
    "output",
    ["text", "", 7, None, {"a": [1, "ü"]}, (1, 2), {1: 2}, ToolOutputImage(image_url="http://x/y"), object],
    ids=str,
)
def test_recorded_output_unpacks_to_what_the_model_saw(output: Any) -> None:
    again = unpack(pack(output))
    assert str(again) == str(output)
    assert unpack(pack([ToolOutputImage(image_url="http://x/y"), "z"])) == [
        ToolOutputImage(image_url="http://x/y"),
        "z",
    ]
