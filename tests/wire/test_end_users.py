"""End users of one key, and owners, are separate on every route that takes an id: what is another's does not exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from outlive.http.openapi import Route
from outlive.http.routes import ROUTES
from tests.support.http_client import Answer, HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, say, text
from tests.support.waiting import wait_until
from tests.wire.conftest import Servers
from tests.wire.test_keys import OPS, make
from tests.wire.websocket import open_websocket

# Routes with an id that is no end user's: of models, of keys (for admins), of webhooks (below), of the console's files.
SHARED = ("/v1/models/", "/v1/keys/", "/v1/webhook_", "/console/")
HOOKS = [route for route in ROUTES if route.path.startswith(("/v1/webhook_endpoints", "/v1/webhook_deliveries"))]
WITH_ID = [route for route in ROUTES if "{" in route.path and not route.path.startswith(SHARED)]
PAIRS = ("owners", "end users", "the owner itself")


class Caller(NamedTuple):
    http: HttpClient
    headers: dict[str, str]

    def request(self, method: str, path: str, body: object = None) -> Answer:
        return self.http.request(method, path, body, **self.headers)


class Pair(NamedTuple):
    one: Caller
    other: Caller
    ids: dict[str, str]  # of what is the first one's


@pytest.fixture(scope="module")
def server(servers: Servers, sealed: tuple[str, ...]) -> OutliveServer:
    keys = ("--api-key", f"ops={OPS}", "--api-key", "anna=anna-key-of-the-settings")
    return servers(*keys, "--admin", "ops", *sealed)


@pytest.fixture(scope="module")
def app_key(server: OutliveServer) -> str:
    return str(make(server, "--owner", "app", "--acts-for")["key"])


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, server: OutliveServer, upstream: FakeUpstream, app_key: str) -> Pair:
    if request.param == "owners":
        callers = (
            Caller(HttpClient(server.port, "anna-key-of-the-settings"), {}),
            Caller(HttpClient(server.port, OPS), {}),
        )
    else:
        app = HttpClient(server.port, app_key)
        named = [{"Outlive-End-User": f"user-{number}"} for number in (1, 2)]
        callers = Caller(app, named[0]), Caller(app, named[1] if request.param == "end users" else {})
    one, other = callers
    conversation = one.request("POST", "/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]}).json()
    items = one.request("GET", f"/v1/conversations/{conversation['id']}/items").json()["data"]
    body = {"model": upstream.model(say("Well.")), "input": "Hi"}
    response = one.request("POST", "/v1/responses", body).json()
    running = {"model": upstream.model([text("On "), HANG]), "input": "Hi", "background": True}
    ids = {
        "response": response["id"],
        "running": one.request("POST", "/v1/responses", running).json()["id"],
        "conversation": conversation["id"],
        "item": items[0]["id"],
        "message": response["output"][0]["id"],
    }
    for noun in ("response", "conversation"):
        made = one.request("POST", f"/v1/{noun}s/{ids[noun]}/tickets", {})
        ids[f"{noun} ticket"] = made.json()["id"]
    path = f"/v1/responses/{ids['running']}"
    wait_until(lambda: one.request("GET", path).json()["status"] == "in_progress", "it runs")
    return Pair(one, other, ids)


def paths(route: Route, ids: dict[str, str]) -> list[str]:
    """The paths of a route for the things of these ids."""
    noun = "response" if route.path.startswith("/v1/responses/") else "conversation"
    path = route.path.replace("{item_id}", ids["item"]).replace("{ticket_id}", ids[f"{noun} ticket"])
    found = [path.replace("{id}", ids[noun])]
    return [*found, path.replace("{id}", ids["running"])] if noun == "response" else found


def test_every_route_with_an_id_is_tried() -> None:
    assert {route.path.split("/")[2] for route in WITH_ID} >= {"responses", "conversations"}
    parameters = {name for route in WITH_ID for name in route.path.split("/") if name.startswith("{")}
    assert parameters <= {"{id}", "{item_id}", "{ticket_id}"}, "teach `paths` the new parameter"
    kinds = {route.path.split("/")[2] for route in WITH_ID}
    assert kinds <= {"responses", "conversations"}, "make one of the new things in `pair`, and teach `paths` its id"


@pytest.mark.parametrize("route", WITH_ID, ids=lambda route: route.id)
def test_no_route_shows_or_changes_what_is_another_callers(pair: Pair, route: Route) -> None:
    body: Any = None
    if route.method == "POST":
        body = {"metadata": {}} if route.id == "updateConversation" else {}
        body = {"items": [{"role": "user", "content": "mine"}]} if route.id == "createItems" else body
    before = _read_all(pair)
    for path in paths(route, pair.ids):
        answer = pair.other.request(route.method, path, body)
        assert answer.status == 404, (path, answer)
        if route.method == "GET" and "timeline" not in path:
            assert pair.one.request("GET", path).status == 200
    assert _read_all(pair) == before


@pytest.mark.parametrize("route", HOOKS, ids=lambda route: route.id)
def test_no_end_user_manages_webhooks(server: OutliveServer, app_key: str, route: Route) -> None:
    fields = {"name": "x", "url": "https://example.com/", "event_types": ["response.completed"]}
    with HttpClient(server.port, app_key) as app:
        made = app.post("/v1/webhook_endpoints", fields).json()
        body = fields | {"event_type": "response.completed"} if route.method == "POST" else None
        answer = app.request(
            route.method, route.path.replace("{id}", made["id"]), body, **{"Outlive-End-User": "user-1"}
        )
        assert answer.status == 403, answer
        assert app.delete(f"/v1/webhook_endpoints/{made['id']}").status == 200


def _read_all(pair: Pair) -> list[Any]:
    paths = (f"/v1/responses/{pair.ids['response']}", f"/v1/conversations/{pair.ids['conversation']}/items")
    running = pair.one.request("GET", f"/v1/responses/{pair.ids['running']}").json()["status"]
    return [*(pair.one.request("GET", path).json() for path in paths), running]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations"])
def test_lists_leave_out_what_is_another_callers(pair: Pair, path: str) -> None:
    own = {each["id"] for each in pair.one.request("GET", path).json()["data"]}
    assert own & set(pair.ids.values())
    assert not own & {each["id"] for each in pair.other.request("GET", path).json()["data"]}
    assert pair.other.request("GET", f"{path}?after={sorted(own)[0]}").status in (400, 404)


@pytest.mark.parametrize(
    "refer",
    [
        lambda ids: {"previous_response_id": ids["response"]},
        lambda ids: {"conversation": ids["conversation"]},
        lambda ids: {"input": [{"type": "item_reference", "id": ids["message"]}]},
    ],
    ids=["parent", "conversation", "item"],
)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
def test_no_request_refers_to_what_is_another_callers(
    pair: Pair, upstream: FakeUpstream, path: str, refer: Callable[[dict[str, str]], dict[str, Any]]
) -> None:
    for store in (True, False) if path == "/v1/responses" else (None,):
        body = {"model": upstream.model(), "input": "Hi", **refer(pair.ids)} | (
            {} if store is None else {"store": store}
        )
        assert pair.other.request("POST", path, body).status in (400, 404)


def test_a_websocket_is_for_one_end_user(
    server: OutliveServer, app_key: str, pair: Pair, upstream: FakeUpstream
) -> None:
    with open_websocket(server.port, app_key, Outlive_End_User="user-3") as socket:
        refused = socket.refusal(model=upstream.model(), input="Hi", previous_response_id=pair.ids["response"])
        assert refused["code"] == "previous_response_not_found"
        made = socket.answer(model=upstream.model(), input="Hi")
    with HttpClient(server.port, app_key) as http:
        assert http.get(f"/v1/responses/{made['id']}", **{"Outlive-End-User": "user-3"}).status == 200
        assert http.get(f"/v1/responses/{made['id']}").status == 404


def test_an_idempotency_key_is_one_end_users(server: OutliveServer, app_key: str) -> None:
    with HttpClient(server.port, app_key) as http:
        key = {"Idempotency-Key": "the-same"}
        made = [http.post("/v1/conversations", {}, **key, **{"Outlive-End-User": user}).json()["id"] for user in "aab"]
    assert made[0] == made[1] != made[2]


def test_a_repeated_request_attaches_to_no_other_end_users_response(
    server: OutliveServer, app_key: str, upstream: FakeUpstream
) -> None:
    model = upstream.model([text("On "), HANG], say("Well."))
    body = {"model": model, "input": "Hi"}
    retry = "x-stainless-retry-count"
    with HttpClient(server.port, app_key) as http:
        connection = http.send("/v1/responses", body, **{retry: "0", "Outlive-End-User": "first"})
        upstream.wait_call(model)
        connection.close()
        again = [http.post("/v1/responses", body, **{retry: "1", **user}) for user in ({"Outlive-End-User": "b"}, {})]
        assert [answer.json()["output"][0]["content"][0]["text"] for answer in again] == ["Well."] * 2
        users: list[dict[str, str]] = [{}, *({"Outlive-End-User": name} for name in "aab")]
        ids = [http.post("/v1/responses", body, **{"Idempotency-Key": "same", **user}).json()["id"] for user in users]
    assert ids[1] == ids[2] and len(set(ids)) == 3


def test_an_end_user_sees_its_own_usage_alone(server: OutliveServer, app_key: str, upstream: FakeUpstream) -> None:
    with HttpClient(server.port, app_key) as http:
        user = {"Outlive-End-User": "the-only-one"}
        http.post("/v1/responses", {"model": upstream.model(), "input": "Hi"}, **user)
        (seen,) = http.get("/v1/usage?group_by=owner,end_user", **user).json()["data"]
    assert (seen["owner"], seen["end_user"], seen["responses"]) == ("app", "the-only-one", 1)


def test_a_ticket_of_an_end_user_opens_the_end_users_response(pair: Pair, server: OutliveServer) -> None:
    made = pair.one.request("POST", f"/v1/responses/{pair.ids['response']}/tickets", {}).json()
    with HttpClient(server.port) as page:
        assert page.get(f"/v1/responses/{pair.ids['response']}?ticket={made['ticket']}").status == 200


def test_a_key_that_does_not_act_for_end_users_may_not_name_one(server: OutliveServer, app_key: str) -> None:
    with HttpClient(server.port, OPS) as ops, HttpClient(server.port, app_key) as app:
        answer = ops.get("/v1/responses", **{"Outlive-End-User": "x"})
        assert (answer.status, answer.error["code"]) == (403, "end_user_not_allowed")
        assert answer.error["param"] == "Outlive-End-User"
        for wrong in ("", "a b", "x" * 257, "\xe4"):
            answer = app.get("/v1/responses", **{"Outlive-End-User": wrong})
            assert (answer.status, answer.error["param"]) == (400, "Outlive-End-User")
        assert app.get("/v1/responses", **{"Outlive-End-User": "x" * 256}).status == 200


def test_log_lines_name_the_owner_and_the_end_user(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--api-key", f"ops={OPS}", "--admin", "ops", "--log-format", "json", "--metrics-owners")
    key = make(server, "--owner", "app", "--acts-for")["key"]
    with HttpClient(server.port, key) as http:
        body = {"model": upstream.model(), "input": "Hi"}
        response_id = http.post("/v1/responses", body, **{"Outlive-End-User": "user-9"}).json()["id"]
        metrics = http.get("/metrics").body.decode()
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    about = [line for line in lines if line.get("response_id") == response_id]
    assert about and all((line["owner"], line["end_user"]) == ("app", "user-9") for line in about)
    assert 'outlive_owner_responses_ended_total{owner="app",status="completed"}' in metrics
    assert "user-9" not in metrics
