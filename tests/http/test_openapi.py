"""The document at /openapi.json: every route is in it, everything it refers to is there, and it knows every field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import schemathesis

from outlive import __version__
from outlive.core.requests.create import CreateBody, CreateResponse
from outlive.http.openapi.document import make_document
from outlive.http.routes import OPEN_PATHS, ROUTES, render

DOCUMENT = make_document(ROUTES)

# What a request has once it is read, besides what was given.
READ = {"given_ids", "refers", "compacts", "secrets", "event_names", "extra"}


def walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from walk(inner)


def test_it_is_a_valid_document_of_its_version() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", __version__)
    assert json.loads(render()) == DOCUMENT


def test_every_route_stands_in_it_and_no_other() -> None:
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(route.method.lower(), route.path.replace(":path", "")) for route in ROUTES}
    assert len(described) == len(ROUTES)


def test_every_operation_says_what_it_does_takes_and_answers() -> None:
    names = []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert operation["summary"] and operation["tags"], path
            in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert "200" in operation["responses"]
            assert ("requestBody" in operation) == (method == "post" and not path.endswith("/cancel"))
            assert (operation.get("security") == []) == (path in OPEN_PATHS)
            if path not in OPEN_PATHS:
                error = operation["responses"]["default"]["content"]["application/json"]["schema"]
                assert error == {"$ref": "#/components/schemas/ErrorAnswer"}
    assert len(names) == len(set(names))


def test_everything_it_refers_to_is_there_and_nothing_is_there_for_nothing() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    referred = {each["$ref"] for each in walk(DOCUMENT) if isinstance(each, dict) and "$ref" in each}
    assert referred == {f"#/components/schemas/{name}" for name in schemas}
    links = {each["operationId"] for each in walk(DOCUMENT) if isinstance(each, dict) and "operationId" in each}
    assert links == {route.id for route in ROUTES}


def test_every_field_of_a_create_stands_in_it() -> None:
    known = set(CreateBody.__struct_fields__)
    assert set(CreateResponse.__struct_fields__) - READ <= known
    assert known - set(CreateResponse.__struct_fields__) == {"access_programs", "image", "stream_options"}
