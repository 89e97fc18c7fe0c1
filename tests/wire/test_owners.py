"""Owners: none can see, continue, list, cancel or delete objects of another (D14, D23)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

from tests.support.http_client import HttpClient, come_from_elsewhere
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, say, text
from tests.support.waiting import TIMEOUT_SECONDS
from tests.wire import events
from tests.wire.conftest import Servers

KEYS = ("--api-key", "anna=anna-key-one", "--api-key", "anna=anna-key-two", "--api-key", "bert=bert-key")


@pytest.fixture
def guarded(servers: Servers) -> OutliveServer:
    return servers(*KEYS)


@pytest.fixture
def anna(guarded: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(guarded.port, "anna-key-one") as http:
        yield http


@pytest.fixture
def bert(guarded: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(guarded.port, "bert-key") as http:
        yield http


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer wrong", "Basic anna-key-one", "anna-key-one", "Bearer ä"]
)
def test_a_request_without_a_valid_key_is_refused(guarded: OutliveServer, value: str | None) -> None:
    headers = {"Authorization": value.encode("latin-1").decode("latin-1")} if value is not None else {}
    with HttpClient(guarded.port) as stranger:
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/v1/responses"),
            ("POST", "/v1/responses"),
            ("POST", "/v1/conversations"),
            ("POST", "/v1/chat/completions"),
        ):
            answer = stranger.request(
                method, path, {} if method == "POST" else None, **headers, **come_from_elsewhere()
            )
            assert answer.status == 401
            assert answer.error["code"] == "invalid_api_key"
        assert stranger.get("/healthz").status == 200
        assert stranger.get("/readyz").status == 200


def test_the_sdk_raises_an_authentication_error_for_a_wrong_key(guarded: OutliveServer) -> None:
    with (
        OpenAI(
            base_url=guarded.base_url, api_key="wrong", max_retries=0, default_headers=come_from_elsewhere()
        ) as client,
        pytest.raises(AuthenticationError),
    ):
        client.responses.create(model="m", input="Hi")


def test_one_owner_may_have_several_keys(guarded: OutliveServer, anna: HttpClient, upstream: FakeUpstream) -> None:
    made = anna.create(model=upstream.model(), input="Hi").json()
    with HttpClient(guarded.port, "anna-key-two") as also_anna:
        assert also_anna.get(f"/v1/responses/{made['id']}").json() == made


def test_a_response_is_not_found_by_another_owner(anna: HttpClient, bert: HttpClient, upstream: FakeUpstream) -> None:
    response_id = anna.create(model=upstream.model(), input="Hi").json()["id"]
    paths = [("GET", path) for path in ("", "?stream=true", "?wait=1", "/input_items")]
    for method, path in (*paths, ("POST", "/cancel"), ("DELETE", "")):
        theirs = bert.request(method, f"/v1/responses/{response_id}{path}")
        nobodys = bert.request(method, f"/v1/responses/resp_unknown{path}")
        assert theirs.status == nobodys.status == 404
        # The error is the same as for an id that never existed.
        assert theirs.body.replace(response_id.encode(), b"resp_unknown") == nobodys.body
    assert anna.get(f"/v1/responses/{response_id}").json()["status"] == "completed"


def test_a_running_response_is_safe_from_another_owner(
    anna: HttpClient, bert: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    stream = anna.stream(model=upstream.model([text("Once "), gate, *say("upon.")]), input="Hi")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    assert bert.post(f"/v1/responses/{response_id}/cancel").status == 404
    assert bert.delete(f"/v1/responses/{response_id}").status == 404
    gate.open()
    stream.read_through("response.completed")


def test_a_response_of_another_owner_is_refused_as_a_parent(
    anna: HttpClient, bert: HttpClient, upstream: FakeUpstream
) -> None:
    response_id = anna.create(model=upstream.model(), input="Hi").json()["id"]
    for store in (True, False):
        answer = bert.create(model=upstream.model(), input="?", previous_response_id=response_id, store=store)
        assert answer.status == 400
        assert answer.error["code"] == "previous_response_not_found"


def test_a_conversation_is_not_found_by_another_owner(
    anna: HttpClient, bert: HttpClient, upstream: FakeUpstream
) -> None:
    items = [{"type": "message", "role": "user", "content": "Hi", "id": "msg_of_anna"}]
    conversation = anna.post("/v1/conversations", {"items": items}).json()["id"]
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": items}),
        ("GET", "/items/msg_of_anna", None),
        ("DELETE", "/items/msg_of_anna", None),
    ):
        theirs = bert.request(method, f"/v1/conversations/{conversation}{path}", body)
        nobodys = bert.request(method, f"/v1/conversations/conv_unknown{path}", body)
        assert theirs.status == nobodys.status == 404
        assert theirs.body.replace(conversation.encode(), b"conv_unknown") == nobodys.body
    for store in (True, False):
        model = upstream.model()
        answer = bert.create(model=model, input="Hi", conversation=conversation, store=store)
        assert answer.status == 404
        assert upstream.calls(model) == []
    assert anna.list_messages(conversation) == [("user", "Hi")]


def test_lists_contain_only_the_owners_own_objects(anna: HttpClient, bert: HttpClient, upstream: FakeUpstream) -> None:
    conversation = anna.post("/v1/conversations", {}).json()["id"]
    response_id = anna.create(model=upstream.model(), input="Hi", conversation=conversation).json()["id"]
    assert response_id in anna.get("/v1/responses").body.decode()
    assert response_id not in bert.get("/v1/responses?limit=100").body.decode()
    assert bert.get(f"/v1/responses?conversation={conversation}").json()["data"] == []
    assert conversation not in bert.get("/v1/conversations?limit=100").body.decode()
    assert bert.get(f"/v1/responses?after={response_id}").status == 400
    assert bert.get(f"/v1/conversations?after={conversation}").status == 400


def test_idempotency_keys_are_separate_for_each_owner(
    anna: HttpClient, bert: HttpClient, upstream: FakeUpstream
) -> None:
    body = {"model": upstream.model(), "input": "Hi"}
    ids = {http.post("/v1/responses", body, idempotency_key="shared").json()["id"] for http in (anna, bert)}
    assert len(ids) == 2
    made = {http.post("/v1/conversations", {}, idempotency_key="shared").json()["id"] for http in (anna, bert)}
    assert len(made) == 2


def test_a_silent_retry_does_not_attach_to_another_owners_response(
    anna: HttpClient, bert: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi"}
    connection = anna.send("/v1/responses", body, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    gate.open()
    made = bert.post("/v1/responses", body, x_stainless_retry_count="1").json()["id"]
    assert anna.get(f"/v1/responses/{made}").status == 404
    assert len(upstream.calls(model)) == 2


def test_the_sdk_sees_only_its_owners_objects(guarded: OutliveServer, upstream: FakeUpstream) -> None:
    with (
        OpenAI(base_url=guarded.base_url, api_key="anna-key-one", max_retries=0) as anna,
        OpenAI(base_url=guarded.base_url, api_key="bert-key", max_retries=0) as bert,
    ):
        made = anna.responses.create(model=upstream.model([text("a"), HANG]), input="Hi", background=True)
        with pytest.raises(NotFoundError):
            bert.responses.retrieve(made.id)
        with pytest.raises(NotFoundError):
            bert.responses.cancel(made.id)
        with pytest.raises(BadRequestError):
            bert.responses.create(model="m", input="Hi", previous_response_id=made.id)
        assert anna.responses.cancel(made.id).status == "cancelled"


def test_no_key_is_stored_or_logged(guarded: OutliveServer, anna: HttpClient, upstream: FakeUpstream) -> None:
    anna.create(model=upstream.model(), input="Hi")
    anna.get("/v1/responses/resp_unknown")
    for path in guarded.folder.iterdir():
        for secret in (b"anna-key-one", b"anna-key-two", b"bert-key"):
            assert secret not in path.read_bytes()


def test_the_callers_key_does_not_reach_the_upstream(anna: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    anna.create(model=model, input="Hi")
    anna.post("/v1/chat/completions", {"model": model, "messages": []})
    for asked in upstream.calls(model):
        assert "anna-key-one" not in str(asked.headers)


def test_a_keyless_server_ignores_authorization_headers(server: OutliveServer, upstream: FakeUpstream) -> None:
    with HttpClient(server.port, "whatever") as http:
        assert http.create(model=upstream.model(), input="Hi").status == 200


def test_a_large_body_waits_for_others_of_its_owner_alone(guarded: OutliveServer, upstream: FakeUpstream) -> None:
    body = {"model": upstream.model(), "input": "x" * 10_000_000}
    stalled = HTTPConnection("127.0.0.1", guarded.port)
    stalled.putrequest("POST", "/v1/responses")
    for name, value in (("authorization", "Bearer anna-key-one"), ("content-length", str(60 << 20))):
        stalled.putheader(name, value)
    stalled.endheaders()
    stalled.send(b'{"input": "')
    answers: list[int] = []
    with HttpClient(guarded.port, "anna-key-two") as anna, HttpClient(guarded.port, "bert-key") as bert:
        assert bert.post("/v1/responses", body).status == 200
        assert anna.post("/v1/responses", {**body, "input": "small"}).status == 200
        waiting = threading.Thread(target=lambda: answers.append(anna.post("/v1/responses", body).status))
        waiting.start()
        assert bert.post("/v1/responses", body).status == 200
        assert answers == []
        stalled.close()
        waiting.join(TIMEOUT_SECONDS)
    assert answers == [200]
