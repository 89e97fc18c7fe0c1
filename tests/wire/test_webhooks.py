"""Webhooks: the official SDK manages endpoints, and verifies what they are sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, InvalidWebhookSignatureError, NotFoundError, OpenAI

from outlive.core.webhooks import EVENT_TYPES
from tests.support.http_client import HttpClient
from tests.support.receiver import HANG, Received, Receiver
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, FakeUpstream, Json, Refuse, call, ending, say, text
from tests.support.upstream import HANG as SILENT
from tests.support.waiting import Stopwatch, wait_until
from tests.wire.conftest import Servers
from tests.wire.test_keys import make as make_key

ENDS: Any = ["response.completed", "response.failed", "response.cancelled", "response.incomplete"]
MODULE = """
from outlive.tools import tool


@tool
def pay() -> str:
    return "paid"
"""
FLAGS = ("--api-key", "anna=anna-key", "--api-key", "bert=bert-key", "--webhook-private", "--webhook-seconds", "1")


@pytest.fixture
def hooked(servers: Servers, sealed: tuple[str, ...]) -> OutliveServer:
    return servers(*FLAGS, *sealed)


@pytest.fixture
def anna(hooked: OutliveServer) -> Iterator[OpenAI]:
    """The SDK with no endpoints left from the test before."""
    with OpenAI(base_url=hooked.base_url, api_key="anna-key", max_retries=0) as opened:
        for endpoint in opened.webhooks.list():
            opened.webhooks.delete(endpoint.id)
        yield opened


@pytest.fixture
def bert(hooked: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=hooked.base_url, api_key="bert-key", max_retries=0) as opened:
        yield opened


@pytest.fixture
def http(hooked: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(hooked.port, "anna-key") as opened:
        yield opened


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def add(client: OpenAI, receiver: Receiver, types: Any = ENDS) -> Any:
    return client.webhooks.create(name="mine", url=receiver.url, event_types=types)


def unwrap(client: OpenAI, received: Received, secret: str) -> Any:
    return client.webhooks.unwrap(received.body, received.headers, secret=secret)


def deliveries(http: HttpClient, query: str = "") -> list[Json]:
    listed: list[Json] = http.get(f"/v1/webhook_deliveries{query}").json()["data"]
    return listed


# -- endpoints


def test_the_sdk_manages_endpoints(anna: OpenAI, receiver: Receiver) -> None:
    made = add(anna, receiver)
    assert (
        made.signing_secret.startswith("whsec_") and made.signing_secret_hint == f"whsec_...{made.signing_secret[-4:]}"
    )
    shown = anna.webhooks.retrieve(made.id)
    assert shown.to_dict() == {k: v for k, v in made.to_dict().items() if k != "signing_secret"}
    assert (shown.name, shown.url, shown.event_types, shown.object) == ("mine", receiver.url, ENDS, "webhook_endpoint")
    same = anna.webhooks.update(made.id, name="mine")
    assert same.updated_at == made.updated_at
    changed = anna.webhooks.update(made.id, name="other", event_types=["response.failed"])
    assert (changed.name, changed.event_types, changed.url) == ("other", ["response.failed"], receiver.url)
    others = [add(anna, receiver).id for _ in range(2)]
    assert [each.id for each in anna.webhooks.list(limit=2)] == [*reversed(others), made.id]
    assert anna.webhooks.event_types.list().data == list(EVENT_TYPES)
    gone = anna.webhooks.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "webhook_endpoint.deleted", True)
    with pytest.raises(NotFoundError):
        anna.webhooks.retrieve(made.id)


def test_the_sdk_tests_an_endpoint(anna: OpenAI, receiver: Receiver) -> None:
    made = add(anna, receiver)
    receiver.answers = [418]
    tested = anna.webhooks.test(made.id, event_type="response.failed")
    assert (tested.status_code, tested.success, tested.webhook_endpoint_id) == (418, True, made.id)
    assert unwrap(anna, receiver.received[0], made.signing_secret).type == "response.failed"
    receiver.answers = [HANG]
    with pytest.raises(BadRequestError) as slow:
        anna.webhooks.test(made.id, event_type="response.failed")
    assert slow.value.code == "webhook_unreachable" and "no answer in 1 s" in slow.value.message


def test_a_new_secret_ends_the_one_before_at_once_or_a_day_later(anna: OpenAI, receiver: Receiver) -> None:
    made = add(anna, receiver)
    first = anna.webhooks.rotate_secret(made.id)
    second = anna.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    anna.webhooks.test(made.id, event_type="response.completed")
    (received,) = receiver.received
    for secret in (first.signing_secret, second.signing_secret):
        assert unwrap(anna, received, secret).type == "response.completed"
    with pytest.raises(InvalidWebhookSignatureError):
        unwrap(anna, received, made.signing_secret)
    assert second.signing_secret_hint == f"whsec_...{second.signing_secret[-4:]}"


def test_endpoints_and_deliveries_are_their_owners_alone(
    anna: OpenAI, bert: OpenAI, hooked: OutliveServer, http: HttpClient, receiver: Receiver, upstream: FakeUpstream
) -> None:
    made = add(anna, receiver)
    bert.responses.create(model=upstream.model(), input="Hi")
    done = anna.responses.create(model=upstream.model(), input="Hi")
    receiver.wait_for(("response.completed", done.id))
    (delivery,) = deliveries(http, f"?webhook_endpoint_id={made.id}")
    assert [each for each in bert.webhooks.list() if each.id == made.id] == []
    for act in (
        lambda: bert.webhooks.retrieve(made.id),
        lambda: bert.webhooks.update(made.id, name="x"),
        lambda: bert.webhooks.delete(made.id),
        lambda: bert.webhooks.rotate_secret(made.id),
        lambda: bert.webhooks.test(made.id, event_type="response.completed"),
        lambda: bert.post(f"/webhook_deliveries/{delivery['id']}/redeliver", cast_to=object),
    ):
        with pytest.raises(NotFoundError):
            act()
    with HttpClient(hooked.port, "bert-key") as other:
        assert deliveries(other) == []
    assert len(receiver.received) == 1


def test_a_list_after_something_unknown_is_refused_by_name(
    anna: OpenAI, bert: OpenAI, http: HttpClient, receiver: Receiver, upstream: FakeUpstream
) -> None:
    made, foreign = add(anna, receiver), add(bert, receiver)
    anna.responses.create(model=upstream.model(), input="Hi")
    (last, *_) = deliveries(http)
    for path, unknown in (
        ("/v1/webhook_endpoints", "we_unknown"),
        ("/v1/webhook_endpoints", foreign.id),
        ("/v1/webhook_deliveries", "wh_unknown"),
        ("/v1/webhook_deliveries", made.id),
    ):
        refused = http.get(f"{path}?after={unknown}")
        assert (refused.status, refused.error["param"]) == (400, "after")
        assert f"'{unknown}'" in refused.error["message"]
    assert http.get(f"/v1/webhook_endpoints?after={made.id}").json()["data"] == []
    assert last["id"] not in [each["id"] for each in deliveries(http, f"?after={last['id']}")]
    bert.webhooks.delete(foreign.id)


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"url": None}, "url"),
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": "https://a:b@example.com/"}, "url"),
        ({"url": "https://example.com/a b"}, "url"),
        ({"url": "https://example.com/\r\nX: y"}, "url"),
        ({"url": "https://example.com/" + "x" * 2048}, "url"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["batch.completed"]}, "event_types[0]"),
        ({"event_types": "response.completed"}, "event_types"),
    ],
)
def test_a_wrong_field_is_refused_by_name(http: HttpClient, changed: Json, param: str) -> None:
    body = {"name": "x", "url": "https://example.com/", "event_types": ["response.completed"]} | changed
    answer = http.post("/v1/webhook_endpoints", body)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param), answer


def test_an_owner_has_twenty_endpoints_at_most(anna: OpenAI, receiver: Receiver) -> None:
    for _ in range(20):
        add(anna, receiver)
    with pytest.raises(BadRequestError, match="20 webhook endpoints"):
        add(anna, receiver)


@pytest.mark.parametrize(
    "url", ["http://example.com/", "https://127.0.0.1/", "https://[::1]/", "https://10.1.2.3/", "https://db.internal/"]
)
def test_a_private_address_is_refused(servers: Servers, url: str) -> None:
    with HttpClient(servers().port) as http:
        body = {"name": "x", "url": url, "event_types": ENDS}
        answer = http.post("/v1/webhook_endpoints", body)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "url")


def test_a_name_that_leads_to_a_private_address_is_sent_nothing(
    servers: Servers, sealed: tuple[str, ...], receiver: Receiver
) -> None:
    with HttpClient(servers(*sealed).port) as http:
        # Resolved when it is sent, and to this machine: its spelling says nothing.
        url = f"https://localtest.me.nip.io.localhost.:{receiver.port}/"
        assert http.post("/v1/webhook_endpoints", {"name": "x", "url": url, "event_types": ENDS}).status == 400
        made = http.post(
            "/v1/webhook_endpoints", {"name": "x", "url": f"https://0x7f.1:{receiver.port}/", "event_types": ENDS}
        ).json()
        answer = http.post(f"/v1/webhook_endpoints/{made['id']}/test", {"event_type": "response.completed"})
        assert (answer.status, "private address" in answer.json()["error"]["message"]) == (400, True)
        http.delete(f"/v1/webhook_endpoints/{made['id']}")
    assert receiver.received == []


# -- events


def test_every_ending_of_a_stored_response_is_sent_and_verified(
    anna: OpenAI, receiver: Receiver, upstream: FakeUpstream
) -> None:
    made = add(anna, receiver)
    plain = anna.responses.create(model=upstream.model(), input="Hi")
    background = anna.responses.create(model=upstream.model([text("Once "), SILENT]), input="Hi", background=True)
    anna.responses.cancel(background.id)
    broken = anna.responses.create(model=upstream.model([text("Once "), CUT]), input="Hi", background=True)
    failed = anna.responses.create(model=upstream.model([Refuse(400)]), input="Hi", background=True)
    unstored = anna.responses.create(model=upstream.model(), input="Hi", store=False)
    wanted = [
        ("response.completed", plain.id),
        ("response.cancelled", background.id),
        ("response.incomplete", broken.id),
        ("response.failed", failed.id),
    ]
    receiver.wait_for(*wanted)
    assert sorted(receiver.events()) == sorted(wanted)
    assert unstored.id not in {response_id for _, response_id in receiver.events()}
    ids = set()
    for received in receiver.received:
        event = unwrap(anna, received, made.signing_secret)
        assert (event.type, event.data.id) == received.event
        assert event.object == "event" and event.id.startswith("evt_") and abs(event.created_at - received.at) < 30
        assert set(json.loads(received.body)) == {"id", "object", "created_at", "type", "data"}
        assert received.headers["webhook-id"].startswith("wh_")
        ids |= {received.headers["webhook-id"], event.id}
    assert len(ids) == 8
    forged = receiver.received[0]._replace(body=receiver.received[0].body + b" ")
    with pytest.raises(InvalidWebhookSignatureError):
        unwrap(anna, forged, made.signing_secret)


def test_an_event_of_an_end_users_response_holds_its_id_alone(
    hooked: OutliveServer, receiver: Receiver, upstream: FakeUpstream
) -> None:
    key = make_key(hooked, "--owner", "app", "--acts-for")["key"]
    with OpenAI(base_url=hooked.base_url, api_key=key, max_retries=0) as app:
        made = add(app, receiver)
        user = {"Outlive-End-User": "user-1"}
        done = app.responses.create(model=upstream.model(), input="Hi", extra_headers=user)
        receiver.wait_for(("response.completed", done.id))
        event = unwrap(app, receiver.received[0], made.signing_secret)
        assert json.loads(receiver.received[0].body)["data"] == {"id": done.id}
        assert app.responses.retrieve(event.data.id, extra_headers=user).status == "completed"
        with pytest.raises(NotFoundError):
            app.responses.retrieve(event.data.id)


def test_only_the_events_that_an_endpoint_names_are_sent(
    anna: OpenAI, receiver: Receiver, upstream: FakeUpstream
) -> None:
    add(anna, receiver, ["response.cancelled"])
    anna.responses.create(model=upstream.model(), input="Hi")
    running = anna.responses.create(model=upstream.model([SILENT]), input="Hi", background=True)
    anna.responses.cancel(running.id)
    receiver.wait_for(("response.cancelled", running.id))
    assert len(receiver.received) == 1


def test_a_deleted_response_is_sent_no_more(
    anna: OpenAI, http: HttpClient, receiver: Receiver, upstream: FakeUpstream
) -> None:
    add(anna, receiver)
    receiver.otherwise = 500
    done = anna.responses.create(model=upstream.model(), input="Hi")
    wait_until(lambda: bool(receiver.received), "it was sent once")
    anna.responses.delete(done.id)
    assert deliveries(http) == []


# -- attempts


def test_an_attempt_that_fails_is_repeated_with_the_same_id(
    anna: OpenAI, http: HttpClient, receiver: Receiver, upstream: FakeUpstream
) -> None:
    made = add(anna, receiver)
    receiver.answers = [500, 302, HANG]
    receiver.headers = {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    done = anna.responses.create(model=upstream.model(), input="Hi")
    receiver.wait_for(("response.completed", done.id))
    assert [each.status for each in receiver.received] == [500, 302, HANG, 200]
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
    assert len({each.body for each in receiver.received}) == 1
    pauses = [b.at - a.at for a, b in zip(receiver.received, receiver.received[1:], strict=False)]
    assert pauses[0] >= 0.7 and pauses[1] >= 1.4
    wait_until(lambda: deliveries(http)[0]["status"] == "delivered", "the delivery is recorded")
    (delivery,) = deliveries(http)
    assert [each["status_code"] for each in delivery["attempts"]] == [500, 302, None, 200]
    assert [each["reason"] for each in delivery["attempts"]] == [
        "refused",
        "redirects",
        "no answer in 1 s",
        "delivered",
    ]
    assert delivery["webhook_endpoint_id"] == made.id and delivery["next_attempt_at"] is None
    assert delivery["id"] == receiver.received[0].headers["webhook-id"]


def test_a_receiver_that_asks_for_time_is_given_it(anna: OpenAI, receiver: Receiver, upstream: FakeUpstream) -> None:
    add(anna, receiver)
    receiver.answers, receiver.headers = [503], {"retry-after": "4"}
    done = anna.responses.create(model=upstream.model(), input="Hi")
    receiver.wait_for(("response.completed", done.id))
    first, second = receiver.received
    assert second.at - first.at >= 4


def test_an_endpoint_that_is_gone_is_disabled_until_it_is_changed(
    anna: OpenAI, http: HttpClient, receiver: Receiver, upstream: FakeUpstream
) -> None:
    made = add(anna, receiver)
    receiver.answers = [410]
    first = anna.responses.create(model=upstream.model(), input="Hi")
    wait_until(lambda: http.get(f"/v1/webhook_endpoints/{made.id}").json()["status"] == "disabled", "it is disabled")
    anna.responses.create(model=upstream.model(), input="Hi")
    assert [each["status"] for each in deliveries(http)] == ["failed"]
    anna.webhooks.update(made.id, name="back")
    third = anna.responses.create(model=upstream.model(), input="Hi")
    receiver.wait_for(("response.completed", third.id))
    assert receiver.events() == [("response.completed", third.id)]
    failed = deliveries(http)[-1]
    assert http.post(f"/v1/webhook_deliveries/{failed['id']}/redeliver").json()["status"] == "pending"
    receiver.wait_for(("response.completed", first.id))


def test_a_receiver_that_hangs_holds_up_no_other(anna: OpenAI, receiver: Receiver, upstream: FakeUpstream) -> None:
    with Receiver() as hanging:
        hanging.otherwise = HANG
        add(anna, hanging)
        add(anna, receiver)
        for _ in range(6):
            anna.responses.create(model=upstream.model(), input="Hi")
        watch = Stopwatch()
        done = anna.responses.create(model=upstream.model(), input="Hi")
        receiver.wait_for(("response.completed", done.id))
        assert watch.seconds < 3
        assert len(receiver.events()) == 7


def test_a_delivery_is_sent_again_on_request(
    anna: OpenAI, http: HttpClient, receiver: Receiver, upstream: FakeUpstream
) -> None:
    made = add(anna, receiver)
    anna.responses.create(model=upstream.model(), input="Hi")
    wait_until(lambda: [each["status"] for each in deliveries(http)] == ["delivered"], "it is delivered")
    (delivery,) = deliveries(http)
    again = http.post(f"/v1/webhook_deliveries/{delivery['id']}/redeliver").json()
    assert (again["id"], again["status"]) == (delivery["id"], "pending")
    wait_until(lambda: len(receiver.received) == 2, "it is sent again")
    assert {each.headers["webhook-id"] for each in receiver.received} == {delivery["id"]}
    for received in receiver.received:
        unwrap(anna, received, made.signing_secret)
    assert http.post("/v1/webhook_deliveries/wh_unknown/redeliver").status == 404


def test_a_request_for_approval_is_sent_before_the_end(
    tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream, receiver: Receiver, sealed: tuple[str, ...]
) -> None:
    folder = tmp_path_factory.mktemp("approving")
    (folder / "hook_tools.py").write_text(
        "from outlive.tools import tool\n\n\n@tool\ndef pay() -> str:\n    return ''\n"
    )

    with OutliveServer(folder, upstream.url, "--tools", "hook_tools", "--webhook-private", *sealed) as server:
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        made = add(client, receiver, [*ENDS, "response.approval_required"])
        receiver.answers = [500]
        tools: Any = [{"type": "mcp", "server_label": "outlive", "require_approval": "always"}]
        asked = client.responses.create(
            model=upstream.model([call(0, "{}", "call_1", "pay"), *ending("tool_calls")], say("Well.")),
            input="Hi",
            tools=tools,
        )
        wanted = [("response.approval_required", asked.id), ("response.completed", asked.id)]
        receiver.wait_for(*wanted)
        assert receiver.events() == wanted  # though the first attempt failed
        event = unwrap(client, receiver.received[-2], made.signing_secret)
        assert (event.type, event.data.id) == wanted[0]
