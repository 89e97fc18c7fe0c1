"""The console's files: served without a key, with headers that keep foreign scripts out, and not at all if off."""

from __future__ import annotations

import pytest

from outlive.http.routes import FOLDER
from tests.console.conftest import MakeServer
from tests.support.server import OutliveServer


def test_the_page_forbids_everything_that_is_not_from_this_server(server: OutliveServer) -> None:
    answer = server.client.get("/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_a_file_is_sent_once_and_then_confirmed_by_its_etag(server: OutliveServer, name: str) -> None:
    path = f"/console/{name}"
    first = server.client.get(path)
    assert (first.status, first.body) == (200, (FOLDER / name).read_bytes())
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["x-content-type-options"] == "nosniff"
    again = server.client.get(path, **{"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("name", ["missing.js", "..%2fapp.py", "%2e%2e"])
def test_other_files_are_not_found(server: OutliveServer, name: str) -> None:
    assert server.client.get(f"/console/{name}").status == 404


def test_no_file_of_the_console_names_another_host_or_parses_html() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "cdn"):
            assert word not in text, (path.name, word)


def test_a_setting_turns_the_console_off(servers: MakeServer) -> None:
    client = servers("--no-console").client
    for path in ("/", "/console/app.js"):
        answer = client.get(path)
        assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert client.get("/outlive.js").status == 200


def test_the_page_needs_no_key_and_its_data_does(servers: MakeServer) -> None:
    client = servers("--api-key", "ann=secret").client
    assert client.get("/").status == client.get("/console/app.js").status == 200
    assert client.get("/v1/responses").status == 401
