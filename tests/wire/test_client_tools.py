"""Tools that clients run, and hosted tools that no server runs, with models behind Chat Completions and Anthropic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    ShellTool,
    WebSearchTool,
    apply_diff,
)
from openai import AsyncOpenAI, BadRequestError, OpenAI

from tests.support import anthropic_upstream as anthropic
from tests.support import upstream as chat
from tests.support.anthropic_upstream import AnthropicUpstream
from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Script
from tests.support.waiting import wait_until
from tests.wire import events

LOOK: Json = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
CRM: Json = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [LOOK]}
SEARCH: Json = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
SCREEN: Json = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
CLICK: Json = {"type": "click", "button": "left", "x": 3, "y": 4}


class Model(NamedTuple):
    """A scripted upstream of one dialect."""

    upstream: FakeUpstream
    prefix: str
    call: Callable[..., Script]
    say: Callable[[str], Script]

    def script(self, *answers: Script) -> tuple[str, str]:
        """Return the model's name for callers, and for the upstream."""
        name = self.upstream.model(*answers)
        return f"{self.prefix}/{name}", name

    def sent(self, name: str) -> list[tuple[list[str], list[tuple[str, Json]]]]:
        """Return, for each request, the names of the tools and the calls in its messages."""
        return [(_names(body), _calls(body)) for body in self.upstream.bodies(name)]


def _names(body: Json) -> list[str]:
    return [(tool.get("function") or tool)["name"] for tool in body.get("tools", ())]


def _calls(body: Json) -> list[tuple[str, Json]]:
    calls: list[tuple[str, Json]] = []
    for message in body["messages"]:
        for made in message.get("tool_calls") or ():
            calls.append((made["function"]["name"], json.loads(made["function"]["arguments"])))
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_use":
                calls.append((block["name"], block["input"]))
    return calls


def call_chat(name: str, arguments: str, call_id: str = "call_1") -> Script:
    pieces = [chat.call(0, arguments[:7]), chat.call(0, arguments[7:])]
    return [chat.call(0, "", call_id, name), *pieces, *chat.ending("tool_calls")]


def call_claude(name: str, arguments: str, call_id: str = "call_1") -> Script:
    pieces = (arguments[:7], arguments[7:])
    return [anthropic.start(), *anthropic.use(0, call_id, name, *pieces), *anthropic.end("tool_use")]


@pytest.fixture(scope="module")
def claude() -> Iterator[AnthropicUpstream]:
    with AnthropicUpstream() as running:
        yield running
    assert running.refusals == []


@pytest.fixture(scope="module")
def server(
    upstream: FakeUpstream, claude: AnthropicUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OutliveServer]:
    folder: Path = tmp_path_factory.mktemp("client-tools")
    settings = folder / "outlive.toml"
    settings.write_text(
        f'[upstreams.chat]\nurl = "{upstream.url}"\n'
        f'[upstreams.claude]\nurl = "{claude.url}"\nkey = "k"\ndialect = "anthropic"\n'
        f'[upstreams.strict]\nurl = "{upstream.url}"\nunrunnable_tools = "refuse"\n'
    )
    (folder / "looking.py").write_text(
        "from outlive.tools import tool\n\n\n@tool\ndef look() -> str:\n    'Looks.'\n    return 'the server looked'\n"
    )
    with OutliveServer(folder, None, "--config", str(settings), "--tools", "looking") as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def http(server: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(server.port) as opened:
        yield opened


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture(params=["chat", "claude"])
def model(request: pytest.FixtureRequest, upstream: FakeUpstream, claude: AnthropicUpstream) -> Model:
    if request.param == "chat":
        return Model(upstream, "chat", call_chat, lambda text: chat.say(text))
    return Model(claude, "claude", call_claude, lambda text: anthropic.say(text))


# The tool, the function's name and the arguments, the item's own fields, and the output.
CALLS: list[tuple[Json, str, Json, Json, Json]] = [
    (
        CRM,
        "crm__look",
        {"at": 1},
        {"type": "function_call", "namespace": "crm", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "output": "seen"},
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        {"commands": ["ls"]},
        {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        {
            "type": "shell_call_output",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ),
    (
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls"], "env": {}},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "output": "a"},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": "@@\n-1\n+2"},
        {
            "type": "apply_patch_call",
            "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-1\n+2"},
        },
        {"type": "apply_patch_call_output", "status": "completed"},
    ),
    (
        {"type": "computer"},
        "computer",
        {"actions": [CLICK]},
        {"type": "computer_call", "actions": [CLICK], "pending_safety_checks": []},
        {"type": "computer_call_output", "output": SCREEN},
    ),
    (
        {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
        "computer",
        {"actions": [CLICK]},
        {"type": "computer_call", "action": CLICK, "pending_safety_checks": []},
        {"type": "computer_call_output", "output": SCREEN},
    ),
    (
        SEARCH,
        "tool_search",
        {"query": "crm"},
        {"type": "tool_search_call", "arguments": {"query": "crm"}, "execution": "client"},
        {"type": "tool_search_output", "execution": "client", "tools": [CRM]},
    ),
]


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "fields", "result"), CALLS, ids=[str(tool["type"]) for tool, *_ in CALLS]
)
def test_a_call_is_streamed_as_its_clients_item_and_its_output_reaches_the_model(
    http: HttpClient, model: Model, tool: Json, name: str, arguments: Json, fields: Json, result: Json
) -> None:
    asked, own = model.script(model.call(name, json.dumps(arguments)), model.say("Done."))
    with http.stream(model=asked, input="Hi", tools=[tool]) as stream:
        seen = events.read_all(stream.read_rest())
    events.check(seen)
    first = seen[-1]["response"]
    (item,) = first["output"]
    assert item == {"id": item["id"], "call_id": "call_1", "status": "completed", **fields}
    answered = http.create(
        model=asked, previous_response_id=first["id"], input=[{"call_id": "call_1", **result}], tools=[tool]
    )
    assert answered.json()["output"][0]["content"][0]["text"] == "Done."
    (offered, none), (offered_then, calls) = model.sent(own)
    assert (offered, none) == ([name], [])
    assert calls == [(name, arguments)]
    assert offered_then == [name, *(["crm__look"] if tool is SEARCH else [])]


def test_a_choice_of_a_clients_tool_names_its_function(http: HttpClient, model: Model) -> None:
    asked, own = model.script(model.say("Hi"))
    tools: list[Json] = [CRM, {"type": "shell"}]
    assert http.create(model=asked, input="Hi", tools=tools, tool_choice={"type": "shell"}).status == 200
    (body,) = model.upstream.bodies(own)
    chosen = body["tool_choice"]
    assert (chosen.get("function") or chosen)["name"] == "shell"


def test_a_turn_of_a_coding_agent_is_answered_without_its_web_search(
    client: OpenAI, server: OutliveServer, model: Model
) -> None:
    asked, own = model.script(model.say("Hi"), model.say("Hi"))
    tools: Any = [LOOK, CRM, {"type": "web_search", "external_web_access": False}]
    about: Json = {"client_metadata": {"turn_id": "t_1"}}
    client.responses.create(model=asked, input="Hi", tools=tools, extra_body=about)
    made = client.responses.create(model=asked, input="Hi", tools=tools, extra_body=about)
    assert (made.status, len(made.tools)) == ("completed", 3)
    assert made.model_extra is not None
    assert made.model_extra["outlive"] == {"left_out_tools": ["web_search"]}
    assert [names for names, _ in model.sent(own)] == [["look", "crm__look"]] * 2
    assert client.responses.retrieve(made.id).model_extra == made.model_extra
    wait_until(lambda: f"response_id={made.id}" in server.log, "its lines are in the log")
    logged = [line for line in server.log.splitlines() if "web_search" in line and f"upstream={model.prefix}" in line]
    assert len(logged) == 1


def test_a_hosted_tool_is_refused_where_the_upstream_is_set_so(client: OpenAI, upstream: FakeUpstream) -> None:
    name = upstream.model()
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=f"strict/{name}", input="Hi", tools=[{"type": "web_search"}])
    assert (refused.value.param, refused.value.code) == ("tools[0].type", "unsupported_parameter")
    assert upstream.bodies(name) == []


def test_a_choice_of_a_hosted_tool_that_is_left_out_is_refused(client: OpenAI, model: Model) -> None:
    asked, own = model.script()
    search: Any = {"type": "web_search"}
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=asked, input="Hi", tools=[search], tool_choice=search)
    assert refused.value.param == "tool_choice"
    assert model.upstream.bodies(own) == []


def test_tools_that_come_as_an_item_are_offered_in_later_turns(http: HttpClient, model: Model) -> None:
    asked, own = model.script(model.call("crm__look", "{}"), model.say("Done."))
    given: list[Json] = [
        {"type": "additional_tools", "role": "developer", "tools": [CRM]},
        {"role": "user", "content": "Hi"},
    ]
    choice = {"type": "function", "name": "look", "namespace": "crm"}
    first = http.create(model=asked, input=given, tool_choice=choice).json()
    (item,) = first["output"]
    assert (item["namespace"], item["name"]) == ("crm", "look")
    assert "crm__look" in json.dumps(model.upstream.bodies(own)[0]["tool_choice"])
    output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    http.create(model=asked, previous_response_id=first["id"], input=[output])
    assert model.sent(own) == [(["crm__look"], []), (["crm__look"], [("crm__look", {})])]


def test_a_member_of_a_namespace_is_the_clients_beside_a_server_tool_of_its_name(
    http: HttpClient, model: Model
) -> None:
    asked, _ = model.script(model.call("crm__look", "{}"), model.call("look", "{}"), model.say("Done."))
    tools: list[Json] = [CRM, {"type": "mcp", "server_label": "outlive"}]
    (item,) = http.create(model=asked, input="Hi", tools=tools).json()["output"]
    assert (item["type"], item["namespace"]) == ("function_call", "crm")
    made = http.create(model=asked, input="Hi", tools=tools).json()
    assert [(item["type"], item.get("output")) for item in made["output"]] == [
        ("mcp_call", "the server looked"), ("message", None),
    ]  # fmt: skip


def test_a_call_of_the_clients_ends_the_turn_beside_a_call_of_the_server(
    http: HttpClient, upstream: FakeUpstream
) -> None:
    both: Script = [
        chat.call(0, "{}", "call_1", "look"),
        chat.call(1, '{"commands":["ls"]}', "call_2", "shell"),
        *chat.ending("tool_calls"),
    ]
    name = upstream.model(both)
    tools: list[Json] = [{"type": "shell"}, {"type": "mcp", "server_label": "outlive"}]
    made = http.create(model=f"chat/{name}", input="Hi", tools=tools).json()
    assert [item["type"] for item in made["output"]] == ["mcp_call", "shell_call"]
    assert len(upstream.bodies(name)) == 1


def test_codex_is_given_an_empty_list_of_models_in_its_own_form(http: HttpClient) -> None:
    asked = http.get("/v1/models?client_version=0.166.0").json()
    assert (asked["object"], asked["models"]) == ("list", [])
    assert "models" not in http.get("/v1/models").json()


# -- the openai-agents SDK, which runs such tools


class Editor:
    """An editor of files in memory."""

    def __init__(self) -> None:
        self.files = {"a.py": "one\ntwo\n"}

    def create_file(self, operation: Any) -> None:
        self.files[operation.path] = apply_diff("", operation.diff, mode="create")

    def update_file(self, operation: Any) -> None:
        self.files[operation.path] = apply_diff(self.files[operation.path], operation.diff)

    def delete_file(self, operation: Any) -> None:
        del self.files[operation.path]


def run_agent(server: OutliveServer, model: str, tool: Any, **fields: Any) -> str:
    async def run() -> str:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
            runs = OpenAIResponsesModel(model=model, openai_client=opened)
            agent: Agent[Any] = Agent(name="Coder", tools=[tool, WebSearchTool()], model=runs)
            made = await Runner.run(agent, "Work.", run_config=RunConfig(tracing_disabled=True), **fields)
            return str(made.final_output)

    return asyncio.run(run())


@pytest.mark.parametrize("state", [{}, {"auto_previous_response_id": True}], ids=["resent", "stored"])
def test_an_agent_runs_the_commands_of_its_shell(server: OutliveServer, model: Model, state: Json) -> None:
    ran: list[list[str]] = []

    def execute(request: Any) -> str:
        ran.append(request.data.action.commands)
        return "a.py"

    asked, own = model.script(model.call("shell", '{"commands":["ls"]}'), model.say("Done."))
    assert run_agent(server, asked, ShellTool(executor=execute), **state) == "Done."
    assert ran == [["ls"]]
    assert model.sent(own)[1] == (["shell"], [("shell", {"commands": ["ls"]})])
    assert "a.py" in json.dumps(model.upstream.bodies(own)[1]["messages"])


def test_an_agent_runs_the_command_of_its_local_shell(server: OutliveServer, model: Model) -> None:
    ran: list[list[str]] = []

    def execute(request: Any) -> str:
        ran.append(request.data.action.command)
        return "a.py"

    asked, own = model.script(model.call("local_shell", '{"command":["ls","-l"]}'), model.say("Done."))
    assert run_agent(server, asked, LocalShellTool(executor=execute)) == "Done."
    assert ran == [["ls", "-l"]]
    assert "a.py" in json.dumps(model.upstream.bodies(own)[1]["messages"])


def test_an_agent_applies_a_patch(server: OutliveServer, model: Model) -> None:
    editor = Editor()
    patches = [
        {"type": "update_file", "path": "a.py", "diff": "@@\n one\n-two\n+2\n"},
        {"type": "create_file", "path": "b.py", "diff": "+new\n"},
    ]
    calls = [model.call("apply_patch", json.dumps(patch), f"call_{n}") for n, patch in enumerate(patches)]
    asked, _ = model.script(*calls, model.say("Done."))
    assert run_agent(server, asked, ApplyPatchTool(editor=editor)) == "Done."
    assert editor.files["a.py"] == "one\n2\n"
    assert editor.files["b.py"].strip() == "new"
