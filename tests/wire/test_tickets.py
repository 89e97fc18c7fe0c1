"""Stream tickets: a page reads one response or one conversation with them, and nothing else, until they end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from outlive.http.routes import ROUTES
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, ending, text
from tests.wire.conftest import Servers

PAGE = "https://app.example.com"
FLAGS = ("--api-key", "anna=anna-key", "--api-key", "bert=bert-key", "--cors-origin", PAGE, "--admin", "anna")

Json = dict[str, Any]


@pytest.fixture
def guarded(servers: Servers) -> OutliveServer:
    return servers(*FLAGS)


@pytest.fixture
def anna(guarded: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(guarded.port, "anna-key") as http:
        yield http


@pytest.fixture
def page(guarded: OutliveServer) -> Iterator[HttpClient]:
    """A page, which has no key."""
    with HttpClient(guarded.port) as http:
        yield http


def make_ticket(owner: HttpClient, target: str, **body: Any) -> Json:
    kind = "responses" if target.startswith("resp") else "conversations"
    answer = owner.post(f"/v1/{kind}/{target}/tickets", body)
    assert answer.status == 200, answer
    made: Json = answer.json()
    assert made["object"] == "ticket" and made["target"] == target and made["ticket"].startswith(made["id"])
    return made


# -- what a ticket opens


def test_a_ticket_opens_its_response_and_the_stream_of_it(
    anna: HttpClient, page: HttpClient, upstream: FakeUpstream
) -> None:
    made = anna.create(upstream.model()).json()
    ticket = make_ticket(anna, made["id"])
    assert ticket["expires_at"] - ticket["created_at"] == 3600
    place, query = f"/v1/responses/{made['id']}", f"ticket={ticket['ticket']}"
    shown = page.get(f"{place}?{query}")
    assert shown.json() == made and shown.headers["cache-control"] == "no-store"
    assert page.get(f"{place}?wait=1&{query}").json() == made
    assert page.request("HEAD", f"{place}?{query}").status == 200
    frames = page.open_stream("GET", f"{place}?stream=true&{query}").read_all().frames
    assert frames == anna.replay(made["id"])
    resumed = page.open_stream("GET", f"{place}?stream=true&starting_after=2&{query}").read_all()
    assert resumed.frames == frames[3:]


def test_an_event_source_resumes_with_a_ticket_and_ends_after_the_last_event(
    anna: HttpClient, page: HttpClient, upstream: FakeUpstream
) -> None:
    made = anna.create(upstream.model()).json()
    address = f"/v1/responses/{made['id']}?stream=true&sse_ids=true&ticket={make_ticket(anna, made['id'])['ticket']}"
    whole = page.get(address, Origin=PAGE)
    assert whole.headers["access-control-allow-origin"] == PAGE
    ids = [line for line in whole.body.decode().splitlines() if line.startswith("id:")]
    assert ids == [f"id: {number}" for number in range(len(ids))] and ids
    # The header wins over the parameter, which an EventSource sends each time.
    rest = page.get(f"{address}&starting_after=0", **{"Last-Event-ID": str(len(ids) - 2)})
    assert [line for line in rest.body.decode().splitlines() if line.startswith("id:")] == ids[-1:]
    ended = page.get(address, **{"Last-Event-ID": str(len(ids) - 1)})
    assert (ended.status, ended.body) == (204, b"")


def test_a_ticket_of_a_conversation_opens_its_items_and_its_responses(
    anna: HttpClient, page: HttpClient, upstream: FakeUpstream
) -> None:
    conversation, other = anna.create_conversation(), anna.create_conversation()
    made = [anna.create(upstream.model(), conversation=conversation).json() for _ in range(2)]
    outside = [
        anna.create(upstream.model(), conversation=other).json()["id"],
        anna.create(upstream.model()).json()["id"],
        "resp_none",
    ]
    query = f"ticket={make_ticket(anna, conversation)['ticket']}"
    place = f"/v1/conversations/{conversation}"
    assert page.get(f"{place}?{query}").json()["id"] == conversation
    items = page.get(f"{place}/items?order=asc&{query}").json()["data"]
    assert items == anna.list_items(conversation)
    assert page.get(f"{place}/items/{items[0]['id']}?{query}").json() == items[0]
    listed = page.get(f"/v1/responses?conversation={conversation}&status=completed&{query}").json()["data"]
    assert [each["id"] for each in listed] == [each["id"] for each in reversed(made)]
    for each in made:
        assert page.get(f"/v1/responses/{each['id']}?{query}").json() == each
        stream = page.open_stream("GET", f"/v1/responses/{each['id']}?stream=true&{query}").read_all()
        assert stream.frames == anna.replay(each["id"])
    refused = [page.get(f"/v1/responses/{each}?{query}") for each in outside]
    refused += [
        page.get(f"/v1/responses?{query}"),
        page.get(f"/v1/responses?conversation={other}&{query}"),
        page.get(f"/v1/responses?conversation={conversation}&conversation={other}&{query}"),
        page.get(f"/v1/conversations/{other}?{query}"),
        page.get(f"/v1/conversations/{other}/items?{query}"),
    ]
    assert {answer.status for answer in refused} == {404}
    assert len({answer.body for answer in refused}) == 1


def test_a_ticket_opens_no_other_route(anna: HttpClient, page: HttpClient, upstream: FakeUpstream) -> None:
    conversation = anna.create_conversation()
    item = anna.post(f"/v1/conversations/{conversation}/items", {"items": [{"role": "user", "content": "x"}]})
    inside = anna.create(upstream.model(), conversation=conversation).json()["id"]
    names = {"id": inside, "item_id": item.json()["data"][0]["id"], "model": "m", "ticket_id": "ticket_1"}
    of_response, of_conversation = make_ticket(anna, inside), make_ticket(anna, conversation)
    opened = set()
    for route in ROUTES:
        if route.open:
            continue
        for ticket in (of_response, of_conversation):
            given = names | ({"id": conversation} if "/conversations/" in route.path else {})
            path = route.path.replace(":path", "").format_map(given)
            body: Json | None = {} if route.method == "POST" else None
            answer = page.request(route.method, f"{path}?ticket={ticket['ticket']}", body, Host="example.com")
            if answer.status == 200:
                opened.add((route.method, route.path, ticket["target"][:4]))
                continue
            assert answer.status == (404 if route.method == "GET" else 403), (route.path, answer)
            assert route.method == "GET" or answer.error["code"] == "ticket_read_only"
    assert opened == {
        ("GET", "/v1/responses/{id}", "resp"),
        ("GET", "/v1/responses/{id}", "conv"),
        ("GET", "/v1/conversations/{id}", "conv"),
        ("GET", "/v1/conversations/{id}/items", "conv"),
        ("GET", "/v1/conversations/{id}/items/{item_id}", "conv"),
    }
    assert anna.retrieve(inside)["status"] == "completed"
    # Nor does it open more together with a key: the request says with which right it comes.
    assert anna.get(f"/v1/models?ticket={of_response['ticket']}").status == 404
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{page.port}/v1/responses?ticket={of_conversation['ticket']}")
    assert refused.value.response.status_code == 403


# -- who makes and revokes it


def test_only_the_owner_makes_and_revokes_tickets(
    anna: HttpClient, page: HttpClient, guarded: OutliveServer, upstream: FakeUpstream
) -> None:
    made, conversation = anna.create(upstream.model()).json()["id"], anna.create_conversation()
    ticket = make_ticket(anna, made)
    with HttpClient(guarded.port, "bert-key") as bert:
        for path in (f"/v1/responses/{made}", f"/v1/conversations/{conversation}", "/v1/responses/resp_none"):
            assert bert.post(f"{path}/tickets", {}).status == 404
        assert bert.delete(f"/v1/responses/{made}/tickets/{ticket['id']}").status == 404
    assert anna.post(f"/v1/conversations/{made}/tickets", {}).status == 404
    assert anna.delete(f"/v1/responses/resp_none/tickets/{ticket['id']}").status == 404
    assert page.get(f"/v1/responses/{made}?ticket={ticket['ticket']}").status == 200
    revoked = anna.delete(f"/v1/responses/{made}/tickets/{ticket['id']}")
    assert revoked.json() == {"id": ticket["id"], "object": "ticket.deleted", "deleted": True}
    assert page.get(f"/v1/responses/{made}?ticket={ticket['ticket']}").error["code"] == "invalid_ticket"
    assert anna.delete(f"/v1/responses/{made}/tickets/{ticket['id']}").status == 404


@pytest.mark.parametrize("expires_in", [0, -1, 604_801, 1.5, "60", True, [60]])
def test_a_wrong_time_is_refused_by_name(anna: HttpClient, expires_in: object) -> None:
    answer = anna.post(f"/v1/conversations/{anna.create_conversation()}/tickets", {"expires_in": expires_in})
    assert answer.status == 400 and answer.error["param"] == "expires_in"


@pytest.mark.parametrize("text", ["", "x", "ticket_1.secret", "{id}", "{id}.", "{id}.wrong", "{ticket}x", "%C3%A4.%00"])
def test_a_wrong_ticket_is_unauthenticated(
    anna: HttpClient, page: HttpClient, upstream: FakeUpstream, text: str
) -> None:
    made = anna.create(upstream.model()).json()["id"]
    wrong = text.format_map(make_ticket(anna, made))
    answer = page.get(f"/v1/responses/{made}?ticket={wrong}")
    assert answer.status == 401, answer
    assert answer.error["code"] == "invalid_ticket"


# -- how it ends


def test_an_expired_ticket_is_unauthenticated_and_its_stream_is_cut(
    anna: HttpClient, page: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    response_id = anna.submit(upstream.model([text("Once "), gate, *ending()]))
    ticket = make_ticket(anna, response_id, expires_in=1)
    address = f"/v1/responses/{response_id}?stream=true&ticket={ticket['ticket']}"
    with page.open_stream("GET", address) as stream:
        stream.read_delta("Once ")
        assert stream.read() is None and stream.cut
    assert page.get(address).status == 401
    gate.open()
    assert anna.wait_ended(response_id)["status"] == "completed"


def test_revoking_a_ticket_cuts_its_streams_and_no_others(
    anna: HttpClient, page: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    response_id = anna.submit(upstream.model([text("Once "), gate, text("upon."), *ending()]))
    revoked, kept = make_ticket(anna, response_id), make_ticket(anna, response_id)
    place = f"/v1/responses/{response_id}?stream=true"
    streams = [page.open_stream("GET", f"{place}&ticket={each['ticket']}") for each in (revoked, revoked, kept)]
    streams.append(anna.follow(response_id))
    for stream in streams:
        stream.read_delta("Once ")
    assert anna.delete(f"/v1/responses/{response_id}/tickets/{revoked['id']}").status == 200
    for stream in streams[:2]:
        assert stream.read() is None and stream.cut
    gate.open()
    for stream in streams[2:]:
        assert stream.read_all().complete


def test_a_ticket_survives_a_restart_and_is_in_no_log(upstream: FakeUpstream, tmp_path: Any) -> None:
    flags = ("--api-key", "anna=anna-key", "--ticket-seconds", "120", "--log-level", "debug")
    with OutliveServer(tmp_path / "server", upstream.url, *flags) as server:
        with HttpClient(server.port, "anna-key") as anna, HttpClient(server.port) as page:
            made = anna.create(upstream.model()).json()["id"]
            kept, revoked = make_ticket(anna, made), make_ticket(anna, made)
            assert kept["expires_at"] - kept["created_at"] == 120
            anna.delete(f"/v1/responses/{made}/tickets/{revoked['id']}")
            server.restart()
            statuses = [page.get(f"/v1/responses/{made}?ticket={each['ticket']}").status for each in (kept, revoked)]
            assert statuses == [200, 401]
            anna.post(f"/v1/responses/{made}/cancel?ticket={kept['ticket']}")
            page.get(f"/v1/nothing?ticket={kept['ticket']}&wrong=1")
        secrets = [each["ticket"].partition(".")[2] for each in (kept, revoked)]
        assert not [secret for secret in secrets if secret in server.log]
        if server.database.exists():
            stored = b"".join(file.read_bytes() for file in server.folder.glob("outlive.db*"))
            assert not [secret for secret in secrets if secret.encode() in stored]
        # An owner without keys has no tickets either.
        server.flags[1] = "bert=bert-key"
        server.restart()
        with HttpClient(server.port) as page:
            assert page.get(f"/v1/responses/{made}?ticket={kept['ticket']}").status == 401


def test_a_keyless_server_gives_tickets_but_refuses_other_origins(http: HttpClient, upstream: FakeUpstream) -> None:
    made = http.create(upstream.model()).json()["id"]
    address = f"/v1/responses/{made}?ticket={make_ticket(http, made)['ticket']}"
    assert http.get(address).status == 200
    assert http.get(address, Origin=PAGE).error["code"] == "forbidden_origin"
    assert http.get(address, Host="example.com").error["code"] == "forbidden_host"


def test_wrong_tickets_are_answered_ever_later(servers: Servers) -> None:
    with HttpClient(servers("--api-key", "carl=carl-key").port) as page:
        for _ in range(6):
            page.get("/v1/responses/resp_1?ticket=ticket_1.x")
        began = time.monotonic()
        page.get("/v1/responses/resp_1?ticket=ticket_1.x")
        assert time.monotonic() - began >= 0.19


def test_the_description_names_the_routes_that_a_ticket_opens(http: HttpClient) -> None:
    document = json.loads(http.get("/openapi.json").body)
    assert document["components"]["securitySchemes"]["ticket"] == {"type": "apiKey", "in": "query", "name": "ticket"}
    opened = {
        (method, path)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
        if {"ticket": []} in described.get("security", [])
    }
    assert {method for method, _ in opened} == {"get"} and len(opened) == 5
