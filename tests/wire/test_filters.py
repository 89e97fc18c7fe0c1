"""Filters of lists: metadata, model, end user and the time of creation, on both databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from openai import OpenAI

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, say
from tests.wire.conftest import Servers
from tests.wire.test_keys import OPS, make

ODD = {'k"': 'a,"b":"c"', "naïve\\": "\u2713 \x00"}
ELSEWHERE = {"note": '"team":"red"'}  # looks like another pair where it is not escaped


class Made(NamedTuple):
    http: HttpClient
    models: list[str]
    ids: dict[str, str]  # by the names of the responses, in the order of their creation


@pytest.fixture(scope="module")
def server(servers: Servers) -> OutliveServer:
    return servers("--api-key", f"ops={OPS}", "--api-key", "anna=anna-key-of-the-settings", "--admin", "ops")


@pytest.fixture(scope="module")
def made(server: OutliveServer, upstream: FakeUpstream) -> Iterator[Made]:
    models = [upstream.model(say("Hi.")), upstream.model(say("Hi.")), upstream.model([HANG])]
    with HttpClient(server.port, "anna-key-of-the-settings") as http:
        given: dict[str, tuple[str, dict[str, str]]] = {
            "red": (models[0], {"team": "red", "n": "1"}),
            "blue": (models[0], {"team": "blue", "n": "1"}),
            "odd": (models[1], ODD),
            "elsewhere": (models[1], ELSEWHERE),
            "running": (models[2], {"team": "red", "n": "2"}),
        }
        ids = {name: http.submit(model, metadata=metadata) for name, (model, metadata) in given.items()}
        for name in [*ids][:-1]:
            http.wait_ended(ids[name])
        yield Made(http, models, ids)


def find(made: Made, path: str = "/v1/responses", **query: str) -> list[str]:
    answer = made.http.get(f"{path}?{urlencode(query)}")
    assert answer.status == 200, answer
    names = {response_id: name for name, response_id in made.ids.items()}
    return [names.get(each["id"], each["id"]) for each in answer.json()["data"]]


def test_responses_are_filtered_by_metadata(made: Made) -> None:
    assert find(made, **{"metadata[team]": "red"}) == ["running", "red"]
    assert find(made, **{"metadata[team]": "red", "metadata[n]": "1"}) == ["red"]
    assert find(made, **{"metadata[team]": "red", "status": "completed"}) == ["red"]
    assert find(made, **{"metadata[team]": "red", "status": "in_progress"}) == ["running"]
    assert find(made, **{"metadata[tea]": "red"}) == find(made, **{"metadata[team]": "re"}) == []
    assert find(made, **{f"metadata[{name}]": value for name, value in ODD.items()}) == ["odd"]


def test_responses_are_filtered_by_model(made: Made) -> None:
    assert find(made, model=made.models[0]) == ["blue", "red"]
    assert find(made, model=made.models[0], **{"metadata[team]": "red"}) == ["red"]
    assert find(made, model="none") == []


def test_responses_are_filtered_by_the_time_of_their_creation(made: Made) -> None:
    now = int(time.time())
    assert find(made, created_after=str(now - 600), order="asc") == [*made.ids]
    assert find(made, created_before=str(now + 600), limit="2") == ["running", "elsewhere"]
    assert find(made, created_after=str(now + 600)) == find(made, created_before=str(now - 600)) == []
    shown = made.http.retrieve(made.ids["red"])["created_at"]
    assert "red" in find(made, created_after=str(shown - 1), created_before=str(shown + 1))
    assert "red" not in find(made, created_after=str(shown)) + find(made, created_before=str(shown))
    assert find(made, created_after="9" * 300) == []


def test_the_sdk_pages_through_a_filtered_list(server: OutliveServer, made: Made) -> None:
    with OpenAI(base_url=server.base_url, api_key="anna-key-of-the-settings") as client:
        pages: list[str] = []
        after: dict[str, str] = {}
        while True:
            query: Any = {"metadata": {"team": "red"}, "limit": 1, **after}
            page: Any = client.get("/responses", cast_to=object, options={"params": query})
            pages += [each["id"] for each in page["data"]]
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
    assert pages == [made.ids["running"], made.ids["red"]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("metadata=red", "metadata"),
        ("metadata[a]=1&metadata[a]=2", "metadata[a]"),
        ("&".join(f"metadata[{n}]=1" for n in range(17)), "metadata[0]"),
        ("created_after=soon", "created_after"),
        ("created_after=1&created_after=2", "created_after"),
        ("model=a&model=b", "model"),
        ("colour=red", "colour"),
        ("status[a]=failed", "status[a]"),
        ("metadata[a=1", "metadata[a"),
    ],
)
@pytest.mark.parametrize("kind", ["responses", "conversations"])
def test_a_filter_that_is_unknown_or_wrong_is_refused_by_name(made: Made, kind: str, query: str, param: str) -> None:
    answer = made.http.get(f"/v1/{kind}?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


def test_conversations_are_filtered_by_metadata_and_time(made: Made) -> None:
    red, odd = (made.http.create_conversation(metadata=metadata) for metadata in ({"team": "red"}, ODD))
    made.http.create_conversation(metadata=ELSEWHERE)
    path = "/v1/conversations"
    assert find(made, path, **{"metadata[team]": "red"}) == [red]
    assert find(made, path, **{f"metadata[{name}]": value for name, value in ODD.items()}) == [odd]
    assert red in find(made, path, created_after=str(int(time.time()) - 600))
    assert find(made, path, created_before="1") == []
    assert made.http.get(f"{path}?model=m").error["param"] == "model"


def test_lists_are_filtered_by_end_user(server: OutliveServer, made: Made, upstream: FakeUpstream) -> None:
    key = str(make(server, "--owner", "app", "--acts-for")["key"])
    model = upstream.model(say("Hi."))
    with HttpClient(server.port, key) as app, HttpClient(server.port, OPS) as ops:
        ids, talks = {}, {}
        for user in ("u1", "u10"):
            header = {"Outlive-End-User": user}
            ids[user] = app.post("/v1/responses", {"model": model, "input": "Hi"}, **header).json()["id"]
            talks[user] = app.post("/v1/conversations", {}, **header).json()["id"]
            for http, owner in ((app, ""), (ops, "&owner=app")):
                listed = http.get(f"/v1/responses?end_user={user}{owner}").json()["data"]
                assert [each["id"] for each in listed] == [ids[user]]
                listed = http.get(f"/v1/conversations?end_user={user}{owner}").json()["data"]
                assert [each["id"] for each in listed] == [talks[user]]
        assert app.get("/v1/responses").json()["data"] == app.get("/v1/responses?end_user=u2").json()["data"] == []
        assert app.get("/v1/responses?end_user=u1", **{"Outlive-End-User": "u10"}).error["param"] == "end_user"
        assert app.get("/v1/responses?end_user=%00").error["param"] == "end_user"
        assert ops.get("/v1/responses?end_user=u1&owner=*").error["param"] == "end_user"
        # The metadata of another owner is hidden, and must not be guessed by filtering either.
        assert ops.get("/v1/responses?owner=anna&metadata[team]=red").error["param"] == "metadata[team]"
    refused = made.http.get("/v1/responses?end_user=u1")
    assert (refused.status, refused.error["code"]) == (403, "end_user_not_allowed")
