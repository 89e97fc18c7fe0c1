"""Real answers, at least one of every route, match /openapi.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from outlive.http.routes import ROUTES
from tests.support.http_client import Answer, HttpClient, Json
from tests.support.receiver import Receiver
from tests.support.upstream import CUT, HANG, FakeUpstream, Refuse, call, ending, reasoning, refusal, say, text
from tests.wire.conftest import Servers

TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}},
    {"type": "custom", "name": "note"},
]


class Described:
    """A client that checks every answer against the document."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http
        self.document: Json = http.get("/openapi.json").json()
        self.seen: set[tuple[str, str]] = set()

    def ask(self, method: str, path: str, body: object = None, status: int = 200, **headers: str) -> Any:
        answer = self.http.request(method, path, body, **headers)
        assert answer.status == status, answer.body
        self.check(method, path.partition("?")[0], answer)
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.body

    def create(self, status: int = 200, **body: Any) -> Any:
        return self.ask("POST", "/v1/responses", body, status)

    def check(self, method: str, path: str, answer: Answer) -> None:
        template = self._find(path)
        self.seen.add((method, template))
        responses = self.document["paths"][template][method.lower()]["responses"]
        described = responses.get(str(answer.status)) or responses["default"]
        kind = answer.headers["content-type"].partition(";")[0]
        schema = described["content"][kind]["schema"]
        if kind == "application/json":
            self.validate(schema, answer.json())
            return
        if kind in ("text/plain", "text/javascript", "text/html"):
            self.validate(schema, answer.body.decode())
            return
        content = schema["properties"]["data"]["anyOf"][1]["contentSchema"]
        for frame in answer.body.decode().split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in frame.splitlines())
            self.validate(schema, fields)
            if fields["data"] != "[DONE]":
                self.validate(content, json.loads(fields["data"]))

    def validate(self, schema: Json, value: Any) -> None:
        validator = jsonschema_rs.validator_for({**schema, "components": self.document["components"]})
        errors = [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(value)]
        assert errors == [], value

    def _find(self, path: str) -> str:
        if path in self.document["paths"]:
            return path
        # The longest template that matches: /conversations/{id}/items and not /conversations/{id}.
        patterns = {template: re.sub(r"{\w+}", ".+", template) for template in self.document["paths"]}
        return max((template for template, pattern in patterns.items() if re.fullmatch(pattern, path)), key=len)


@pytest.fixture
def client(servers: Servers) -> Iterator[Described]:
    server = servers("--webhook-private", "--api-key", "ops=the-key-of-ops", "--admin", "ops")
    with HttpClient(server.port, "the-key-of-ops") as http:
        yield Described(http)


def hook_with_each_route(client: Described, model: str) -> None:
    hooks, types = "/v1/webhook_endpoints", client.ask("GET", "/v1/webhook_event_types")["data"]
    with Receiver() as receiver:
        made = client.ask("POST", hooks, {"name": "x", "url": receiver.url, "event_types": types})
        client.ask("GET", hooks)
        client.ask("GET", f"{hooks}/{made['id']}")
        client.ask("POST", f"{hooks}/{made['id']}", {"name": "y"})
        client.ask("POST", f"{hooks}/{made['id']}/rotate_secret", {})
        client.ask("POST", f"{hooks}/{made['id']}/test", {"event_type": types[0]})
        done = client.create(model=model, input="Hi")
        receiver.wait_for(("response.completed", done["id"]))
        (delivery,) = client.ask("GET", "/v1/webhook_deliveries")["data"]
        client.ask("POST", f"/v1/webhook_deliveries/{delivery['id']}/redeliver")
    client.ask("DELETE", f"{hooks}/{made['id']}")


def test_every_route_answers_as_described(client: Described, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Hello"))
    parent = client.create(model=model, input="Hi", metadata={"a": "b"}, tools=TOOLS)["id"]
    client.create(model=model, input="Hi", stream=True, previous_response_id=parent)
    client.create(model=model, input="Hi", store=False)
    client.create(model=model, input="Hi", background=True)
    client.ask("POST", "/v1/responses/input_tokens", {"model": model, "input": "Hi"})
    client.ask("POST", "/v1/responses/compact", {"model": model, "input": "Hi"})
    for query in ("", "?stream=true", "?stream=true&starting_after=3", "?wait=1"):
        client.ask("GET", f"/v1/responses/{parent}{query}")
    client.ask("GET", f"/v1/responses/{parent}/input_items")
    client.ask("GET", f"/v1/responses/{parent}/timeline")
    client.ask("POST", f"/v1/responses/{parent}/cancel")
    client.ask("GET", "/v1/responses?limit=100&status=completed")
    client.ask("DELETE", f"/v1/responses/{parent}")

    conversation = client.ask("POST", "/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]})["id"]
    place = f"/v1/conversations/{conversation}"
    client.ask("POST", place, {"metadata": {"a": "b"}})
    client.ask("GET", place)
    client.ask("GET", "/v1/conversations")
    added = client.ask("POST", f"{place}/items", {"items": [{"role": "assistant", "content": "Yes?"}]})["data"][0]["id"]
    inside = client.create(model=model, input="Hi", conversation=conversation)["id"]
    for target in (f"/v1/responses/{inside}", place):
        ticket = client.ask("POST", f"{target}/tickets", {"expires_in": 60})
        client.ask("DELETE", f"{target}/tickets/{ticket['id']}")
    client.ask("GET", f"{place}/items")
    client.ask("GET", f"{place}/items/{added}")
    client.ask("DELETE", f"{place}/items/{added}")
    client.ask("DELETE", place)

    key = client.ask("POST", "/v1/keys", {"owner": "anna", "role": "read", "expires_in_days": 1})
    client.ask("GET", "/v1/keys")
    client.ask("DELETE", f"/v1/keys/{key['id']}")
    client.ask("GET", "/v1/audit?limit=2")
    client.ask("GET", "/v1/responses?owner=*")
    client.ask("GET", "/v1/conversations?owner=ops")
    client.ask("GET", "/v1/usage?group_by=owner,end_user,model,day")
    hook_with_each_route(client, model)
    client.ask("GET", "/v1/models")
    client.ask("GET", "/v1/models/first-model")
    messages = [{"role": "user", "content": "Hi"}]
    client.ask("POST", "/v1/chat/completions", {"model": model, "messages": messages})
    client.ask("POST", "/v1/chat/completions", {"model": model, "messages": messages, "stream": True})
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/outlive.js", "/", "/console/app.js"):
        client.ask("GET", path)
    assert client.seen == {(route.method, route.path.replace(":path", "")) for route in ROUTES}


def test_every_item_type_and_outcome_is_as_described(client: Described, upstream: FakeUpstream) -> None:
    calls = [
        reasoning("Hmm."), text("I look. "), call(0, "{}", "call_1", "look"),
        call(1, '{"input": "x"}', "call_2", "note"), *ending("tool_calls"),
    ]  # fmt: skip
    asked = client.create(model=upstream.model(calls), input="Hi", tools=TOOLS)
    assert {item["type"] for item in asked["output"]} > {"reasoning", "message", "function_call"}
    history = [
        *asked["output"],
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "wet"}]},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "noted"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]},
    ]
    received = client.create(model=upstream.model([refusal("No."), *ending()]), input=history, tools=TOOLS)
    client.ask("GET", f"/v1/responses/{received['id']}/input_items?limit=100")
    client.create(model=upstream.model([text("Once "), CUT]), input="Hi")
    client.create(model=upstream.model([text("Once "), *ending("length")]), input="Hi")
    running = client.create(model=upstream.model([text("Once "), HANG]), input="Hi", background=True)["id"]
    client.ask("POST", f"/v1/responses/{running}/cancel")
    client.ask("GET", f"/v1/responses/{running}?stream=true")
    failed = client.create(model=upstream.model([Refuse(400)]), input="Hi", background=True)["id"]
    assert client.ask("GET", f"/v1/responses/{failed}?wait=10")["status"] == "failed"
    client.ask("GET", "/v1/responses?limit=100")


def test_an_item_with_a_field_of_another_kind_is_as_described(client: Described) -> None:
    item = {"type": "reasoning", "summary": [], "call_id": []}
    conversation = client.ask("POST", "/v1/conversations", {"items": [item]})
    listed = client.ask("GET", f"/v1/conversations/{conversation['id']}/items")
    assert listed["data"][0]["call_id"] == []


def test_every_refusal_is_as_described(client: Described, servers: Servers, upstream: FakeUpstream) -> None:
    client.create(400, model="m", input=5)
    client.create(400, model="m", input="Hi", previous_response_id="resp_unknown")
    client.create(404, model="m", input="Hi", conversation="conv_unknown")
    client.create(400, model=upstream.model([Refuse(400)]), input="Hi")
    client.ask("POST", "/v1/responses", {"model": "m"}, 415, content_type="text/plain")
    client.ask("GET", "/v1/responses?limit=0", status=400)
    for path in ("/v1/responses/resp_unknown", "/v1/conversations/conv_unknown", "/v1/models/nobodys"):
        client.ask("GET", path, status=404)
    client.ask("POST", "/v1/conversations", {"items": [], "metadata": {"a": 1}}, 400)
    client.ask("POST", "/v1/conversations", {}, idempotency_key="openapi-1")
    client.ask("POST", "/v1/conversations", {"metadata": {"a": "b"}}, 409, idempotency_key="openapi-1")
    with HttpClient(servers("--api-key", "alice=sesame").port) as stranger:
        Described(stranger).ask("GET", "/v1/responses", status=401)


def test_a_literal_path_allows_its_own_methods_and_not_those_of_an_id(http: HttpClient) -> None:
    for path in ("/v1/responses/compact", "/v1/responses/input_tokens"):
        assert http.request("PUT", path).headers["allow"] == "POST"
    assert http.request("PUT", "/v1/responses/resp_1").headers["allow"] == "DELETE, GET, HEAD"
