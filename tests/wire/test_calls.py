"""Calls and their outputs in every dialect: none is lost, and the model answers the newest output (D6b, D25).

The scripted upstreams refuse what real ones refuse: calls without outputs, wrong orders of messages, ids used twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import anthropic_upstream as anthropic
from tests.support import responses_events as output
from tests.support import responses_upstream as responses
from tests.support import upstream as chat
from tests.support.anthropic_upstream import AnthropicUpstream
from tests.support.http_client import HttpClient, Json
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Script

LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SEARCHED: Json = {"type": "function", "name": "RESULT", "parameters": {"type": "object", "properties": {}}}
RESULT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "RESULT"}
# By type: a call's own fields, and those of its output.
CALLS: dict[str, tuple[Json, Json]] = {
    "function_call": ({"name": "look", "arguments": "{}"}, {"output": "RESULT"}),
    "custom_tool_call": ({"name": "look", "input": "x"}, {"output": "RESULT"}),
    "shell_call": (
        {"action": {"commands": ["ls"]}},
        {"output": [{"stdout": "RESULT", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    ),
    "local_shell_call": ({"action": {"type": "exec", "command": ["ls"], "env": {}}}, {"output": "RESULT"}),
    "apply_patch_call": (
        {"operation": {"type": "delete_file", "path": "a"}},
        {"status": "completed", "output": "RESULT"},
    ),
    "computer_call": (
        {"action": {"type": "screenshot"}, "pending_safety_checks": []},
        {"output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,RESULT"}},
    ),
    "tool_search_call": (
        {"execution": "client", "arguments": {"query": "q"}},
        {"type": "tool_search_output", "execution": "client", "tools": [SEARCHED]},
    ),
}


class Model(NamedTuple):
    """A scripted upstream of one dialect."""

    upstream: FakeUpstream
    prefix: str
    call: Callable[[str, str], Script]
    say: Callable[[str], Script]

    def script(self, *answers: Script) -> tuple[str, str]:
        """Return the model's name for callers, and for the upstream."""
        name = self.upstream.model(*answers)
        return f"{self.prefix}/{name}", name

    def context(self, name: str, number: int = -1) -> list[Json]:
        """Return the messages, or the items, of a request."""
        body = self.upstream.bodies(name)[number]
        context: list[Json] = body.get("messages") or body["input"]
        return context


def call_chat(name: str, call_id: str) -> Script:
    return [chat.call(0, "{}", call_id, name), *chat.ending("tool_calls")]


def call_claude(name: str, call_id: str) -> Script:
    return [anthropic.start(), *anthropic.use(0, call_id, name, "{}"), *anthropic.end("tool_use")]


def call_responses(name: str, call_id: str) -> Script:
    return responses.steps(output.call("{}", name=name, call_id=call_id))


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Model]]:
    with FakeUpstream() as chats, AnthropicUpstream() as claude, ResponsesUpstream() as other:
        yield {
            "chat": Model(chats, "chat", call_chat, lambda text: chat.say(text)),
            "claude": Model(claude, "claude", call_claude, lambda text: anthropic.say(text)),
            "responses": Model(other, "responses", call_responses, lambda text: responses.say(text)),
        }
        assert claude.refusals == [] and other.refusals == []


@pytest.fixture(scope="module")
def server(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    folder: Path = tmp_path_factory.mktemp("calls")
    tables = [f'[upstreams.{name}]\nurl = "{model.upstream.url}"\nkey = "k"\n' for name, model in models.items()]
    tables[1] += 'dialect = "anthropic"\n'
    tables[2] += 'dialect = "responses"\n'
    (folder / "outlive.toml").write_text("".join(tables))
    (folder / "looking.py").write_text(
        "from outlive.tools import tool\n\n\n@tool\ndef look() -> str:\n    'Looks.'\n    return 'seen'\n"
    )
    with OutliveServer(folder, None, "--config", "outlive.toml", "--tools", "looking") as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def http(server: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(server.port) as opened:
        yield opened


@pytest.fixture(params=["chat", "claude", "responses"])
def model(request: pytest.FixtureRequest, models: dict[str, Model]) -> Model:
    return models[request.param]


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_of_the_callers_input_is_sent_whatever_its_status(http: HttpClient, model: Model, kind: str) -> None:
    fields, result = CALLS[kind]
    for status in ("in_progress", "incomplete"):
        asked, own = model.script(model.say("Fine."))
        begun: Json = {"type": kind, "call_id": "call_1", "status": status, **fields}
        answer: Json = {"type": f"{kind}_output", "call_id": "call_1", **result}
        question: Json = {"role": "user", "content": "Hi"}
        for store in (True, False):
            assert http.create(model=asked, input=[question, begun, answer], store=store).status == 200
            assert "RESULT" in json.dumps(model.context(own))
        assert http.create(model=asked, input=[question, begun, question]).status == 200
        assert "call_1" in json.dumps(model.context(own)), "a call without an output was left out"


@pytest.mark.parametrize("kind", [*CALLS, "acme:search"])
def test_an_unanswered_call_that_a_caller_adds_is_sent_whatever_its_status(
    http: HttpClient, model: Model, kind: str
) -> None:
    """Only a call that the server itself left unfinished is left out."""
    fields, _ = CALLS.get(kind, ({"query": "q"}, {}))
    begun: Json = {"type": kind, "call_id": "call_1", "status": "in_progress", **fields}
    conversation, (asked, own) = http.create_conversation(), model.script(model.say("Fine."))
    assert http.post(f"/v1/conversations/{conversation}/items", {"items": [begun]}).status == 200
    first = http.create(model=asked, input="Hi", conversation=conversation)
    http.create(model=asked, input="And?", conversation=conversation)
    chained = http.create(model=asked, input=[begun, {"role": "user", "content": "Hi"}])
    again = http.create(model=asked, input="And?", previous_response_id=chained.json()["id"])
    assert (first.status, again.status) == (200, 200)
    assert all("call_1" in json.dumps(model.context(own, n)) for n in range(4))


@pytest.mark.parametrize("kind", ["shell_call", "local_shell_call", "apply_patch_call", "computer_call"])
def test_an_item_of_an_odd_shape_reaches_the_model_in_a_valid_request(
    http: HttpClient, model: Model, kind: str
) -> None:
    """The door takes more than models' servers do, and older versions took anything."""
    call: Json = {"type": kind, "call_id": "call_1", "action": {"note": "ODD"}, "operation": {"note": "ODD"}}
    output: Json = {"type": f"{kind}_output", "call_id": "call_1", "output": "RESULT"}
    conversation, (asked, own) = http.create_conversation(), model.script(model.say("Fine."))
    assert http.post(f"/v1/conversations/{conversation}/items", {"items": [call, output]}).status == 200
    assert http.create(model=asked, input="Hi", conversation=conversation).status == 200
    sent = json.dumps(model.context(own))
    assert "ODD" in sent and "RESULT" in sent
    if model.prefix == "responses":
        assert [item["type"] for item in model.context(own)][:2] == ["function_call", "function_call_output"]


@pytest.mark.parametrize("way", ["conversation", "chain", "stateless"])
def test_a_late_output_is_the_last_thing_in_the_context(http: HttpClient, model: Model, way: str) -> None:
    asked, own = model.script(model.call("look", "call_1"), model.say("I wait."), model.say("Done."))
    given: Json = {"model": asked, "tools": [LOOK]}
    if way == "conversation":
        given["conversation"] = http.create_conversation()
    history: list[Json] = []
    made: Json = {}
    for new in ({"role": "user", "content": "Look."}, {"role": "user", "content": "And?"}, RESULT):
        history.append(new)
        if way == "chain" and made:
            given["previous_response_id"] = made["id"]
        sent = {"input": history, "store": False} if way == "stateless" else {"input": [new]}
        answer = http.create(**given, **sent)
        assert answer.status == 200, answer
        made = answer.json()
        history += made["output"]
    assert made["output"][0]["content"][0]["text"] == "Done."
    context = model.context(own)
    assert "RESULT" in json.dumps(context[-1])
    assert "I wait." in json.dumps(context[-3:-1])


def test_a_late_refusal_of_a_call_is_the_last_thing_in_the_context(http: HttpClient, model: Model) -> None:
    asked, own = model.script(model.call("look", "call_1"), model.say("I wait."), model.say("Well."))
    tools: list[Json] = [{"type": "mcp", "server_label": "outlive", "require_approval": "always"}]
    given: Json = {"model": asked, "tools": tools, "conversation": http.create_conversation()}
    (*_, request) = http.create(**given, input="Look.").json()["output"]
    assert request["type"] == "mcp_approval_request"
    http.create(**given, input="And?")
    refusal: Json = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": False}
    assert http.create(**given, input=[refusal]).json()["status"] == "completed"
    assert "did not approve" in json.dumps(model.context(own)[-1])


def test_call_ids_that_a_model_uses_again_are_accepted(http: HttpClient, model: Model) -> None:
    """Some models count their calls from zero in every turn."""
    asked, own = model.script(model.call("look", "call_1"), model.call("look", "call_1"), model.say("Done."))
    given: Json = {"model": asked, "tools": [LOOK], "conversation": http.create_conversation()}
    http.create(**given, input="Look.")
    http.create(**given, input=[RESULT])
    made = http.create(**given, input=[{**RESULT, "output": "AGAIN"}])
    assert made.json()["status"] == "completed"
    assert "AGAIN" in json.dumps(model.context(own)[-1])


def test_hosted_items_go_back_to_the_server_that_made_them(http: HttpClient, models: dict[str, Model]) -> None:
    """A program waits for the outputs of the functions that it calls; a hosted search has no `call_id`."""
    model = models["responses"]
    search: Json = {"type": "tool_search_call", "id": "tsc_1", "call_id": None, "execution": "server"}
    found: Json = {"type": "tool_search_output", "id": "tso_1", "call_id": None, "execution": "server"}
    program: Json = {"type": "program", "id": "prog_1", "call_id": "call_p", "code": "look()", "fingerprint": "f"}
    whole: list[Any] = [
        {**search, "arguments": {"query": "look"}, "status": "completed"},
        {**found, "tools": [LOOK], "status": "completed"},
        program,
    ]
    asked, own = model.script(
        responses.steps(*(output.hosted(item, item) for item in whole), output.call("{}", name="look")),
        model.say("Done."),
    )
    first = http.create(model=asked, input="Hi", tools=[LOOK, {"type": "tool_search"}]).json()
    assert [item["type"] for item in first["output"]] == [*(item["type"] for item in whole), "function_call"]
    result: Json = {"type": "function_call_output", "call_id": "call_up1", "output": "seen"}
    assert http.create(model=asked, input=[result], previous_response_id=first["id"]).status == 200
    kinds = [item["type"] for item in model.context(own)]
    assert kinds == ["message", *(item["type"] for item in whole), "function_call", "function_call_output"]
