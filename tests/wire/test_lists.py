"""Lists beyond OpenAI's: responses and conversations, and the models of the upstream (D15)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import NotFoundError, OpenAI

from tests.support.http_client import HttpClient
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, Step, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers


@pytest.fixture(scope="module")
def own(servers: Servers) -> Iterator[HttpClient]:
    """A server of its own, without responses of other tests."""
    with HttpClient(servers("--log-level", "debug").port) as http:
        yield http


@pytest.fixture(scope="module")
def made(own: HttpClient, upstream: FakeUpstream) -> dict[str, str]:
    """The ids of one response in every status, in the order of their creation."""
    scripts: dict[str, list[Step]] = {
        "completed": say("Hi."),
        "failed": [Refuse(400)],
        "incomplete": [text("Hi"), *ending("length")],
        "cancelled": [HANG],
        "in_progress": [text("Hi"), HANG],
    }
    ids: dict[str, str] = {}
    for status, script in scripts.items():
        body = {"model": upstream.model(script), "input": "Hi", "instructions": "Be brief.", "metadata": {"k": status}}
        response_id = own.create(background=True, **body).json()["id"]
        if status == "in_progress":
            own.follow(response_id).read_through("response.output_text.delta")
        elif status == "cancelled":
            own.post(f"/v1/responses/{response_id}/cancel")
        else:
            assert own.get(f"/v1/responses/{response_id}?wait=10").json()["status"] == status
        ids[status] = response_id
    return ids


def test_responses_are_listed_newest_first(own: HttpClient, made: dict[str, str]) -> None:
    page = own.get("/v1/responses").json()
    assert page["object"] == "list" and page["has_more"] is False
    assert [each["id"] for each in page["data"]] == [*made.values()][::-1]
    assert [each["status"] for each in page["data"]] == [*made][::-1]
    assert (page["first_id"], page["last_id"]) == (made["in_progress"], made["completed"])


def test_listed_responses_omit_long_fields(own: HttpClient, made: dict[str, str]) -> None:
    for each in own.get("/v1/responses").json()["data"]:
        assert not {"output", "tools", "instructions"} & set(each)
        assert each["metadata"] == {"k": each["status"]}
        whole = own.get(f"/v1/responses/{each['id']}").json()
        assert {name: value for name, value in whole.items() if name in each} == each


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_responses_are_paged_in_both_orders(own: HttpClient, made: dict[str, str], order: str) -> None:
    found: list[str] = []
    query = f"/v1/responses?limit=2&order={order}"
    page = own.get(query).json()
    while True:
        found += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            break
        page = own.get(f"{query}&after={page['last_id']}").json()
    assert found == [*made.values()][:: 1 if order == "asc" else -1]


@pytest.mark.parametrize("query", ["status=failed&status=cancelled", "status[]=failed&status[]=cancelled"])
def test_responses_are_filtered_by_status(own: HttpClient, made: dict[str, str], query: str) -> None:
    found = [each["id"] for each in own.get(f"/v1/responses?{query}").json()["data"]]
    assert found == [made["cancelled"], made["failed"]]
    assert [each["id"] for each in own.get("/v1/responses?status=in_progress").json()["data"]] == [made["in_progress"]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("status=done", "status"),
        ("after=resp_unknown", "after"),
        ("limit=0", "limit"),
        ("conversation=wa_10", "conversation"),
    ],
)
def test_invalid_list_parameters_are_refused(own: HttpClient, query: str, param: str) -> None:
    answer = own.get(f"/v1/responses?{query}")
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.fixture
def stored(http: HttpClient, upstream: FakeUpstream) -> dict[str, str]:
    """The ids of a conversation, of its item and of a response."""
    conversation = http.post("/v1/conversations", {"items": [{"role": "user", "content": "Hi"}]}).json()["id"]
    item = http.get(f"/v1/conversations/{conversation}/items").json()["data"][0]["id"]
    response = http.create(model=upstream.model(say("Hi.")), input="Hi").json()["id"]
    return {"conversation": conversation, "item": item, "id": response}


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/responses?colour=x", "colour"),
        ("/v1/responses?status=completed&tags[k]=completed", "tags[k]"),
        ("/v1/responses/{id}?after=resp_1", "after"),
        ("/v1/responses/{id}/input_items?type=message", "type"),
        ("/v1/conversations?model=a", "model"),
        ("/v1/conversations/{conversation}/items?metadata[topic]=a", "metadata[topic]"),
        ("/v1/conversations/{conversation}?limit=1", "limit"),
        ("/v1/conversations/{conversation}/items?role=user", "role"),
        ("/v1/conversations/{conversation}/items/{item}?role=user", "role"),
        ("/v1/models?owned_by=me", "owned_by"),
    ],
)
def test_an_unknown_query_parameter_is_refused_by_name(
    http: HttpClient, stored: dict[str, str], path: str, param: str
) -> None:
    answer = http.get(path.format(**stored))
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("unknown_parameter", param)
    assert param in answer.error["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/{id}?include[]=reasoning.encrypted_content&include_obfuscation=false",
        "/v1/responses/{id}/input_items?include=message.input_image.image_url&order=asc",
        "/v1/conversations/{conversation}/items?include[]=message.output_text.logprobs&limit=5",
        "/v1/conversations/{conversation}/items/{item}?include[]=message.output_text.logprobs",
        "/v1/responses?api-version=2026-01-01&_=1794844932",
        "/v1/models?client_version=0.166.0",
        "/healthz?probe=1",
    ],
)
def test_query_parameters_that_clients_add_are_accepted(http: HttpClient, stored: dict[str, str], path: str) -> None:
    assert http.get(path.format(**stored)).status == 200


def test_a_reloaded_page_finds_its_running_response(client: OpenAI, http: HttpClient, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create().id
    http.create(model=upstream.model(say("Four.")), input="2+2?", conversation=conversation)
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    first = http.stream(model=model, input="A story!", conversation=conversation)
    first.read_through("response.output_text.delta")
    first.close()
    # A reloaded page shows the question, and finds the response that answers it.
    assert http.list_messages(conversation)[-1] == ("user", "A story!")
    query = f"/v1/responses?conversation={conversation}&status=queued&status=in_progress"
    (running,) = http.get(query).json()["data"]
    stream = http.follow(running["id"])
    gate.open()
    assert events.text_of(events.read_all(stream.read_rest())) == "Once upon."
    assert http.get(query).json()["data"] == []


def test_conversations_are_listed_newest_first(own: HttpClient) -> None:
    ids = [own.post("/v1/conversations", {"metadata": {"n": str(n)}}).json()["id"] for n in range(5)]
    page = own.get("/v1/conversations?limit=3").json()
    assert [each["id"] for each in page["data"]] == ids[:1:-1]
    assert page["has_more"] is True
    rest = own.get(f"/v1/conversations?limit=3&after={page['last_id']}").json()
    assert [each["id"] for each in rest["data"]] == ids[1::-1]
    assert rest["has_more"] is False
    assert [each["id"] for each in own.get("/v1/conversations?order=asc").json()["data"]] == ids
    own.delete(f"/v1/conversations/{ids[2]}")
    assert ids[2] not in own.get("/v1/conversations").body.decode()


def test_the_models_are_those_of_the_upstream(client: OpenAI, upstream: FakeUpstream) -> None:
    assert [model.id for model in client.models.list()] == upstream.models
    assert client.models.retrieve("first-model").object == "model"
    with pytest.raises(NotFoundError):
        client.models.retrieve("nobody/knows")


def test_a_response_with_long_fields_is_listed_without_them(http: HttpClient, upstream: FakeUpstream) -> None:
    created = http.create(model=upstream.model(), input="Hi", instructions="x" * 100_000, metadata={"k": "long"}).json()
    (listed,) = http.get("/v1/responses?limit=1").json()["data"]
    assert (listed["id"], listed["status"], listed["metadata"]) == (created["id"], "completed", {"k": "long"})
    assert "instructions" not in listed
