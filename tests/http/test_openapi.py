"""The document at /openapi.json: it describes every route and field, and agrees with the checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from outlive import __version__
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateBody, CreateResponse, parse_create
from outlive.http.openapi import make_document
from outlive.http.routes import OPEN_PATHS, ROUTES, render
from tests.support.scripting import CountingIds

DOCUMENT = make_document(ROUTES)

# What a request has once it is read, besides what was given.
READ = {"given_ids", "refers", "compacts", "deadline", "secrets", "event_names", "extra", "origin"}


def walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from walk(inner)


def test_the_document_is_valid_openapi_of_the_products_version() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", __version__)
    assert json.loads(render()) == DOCUMENT


def test_the_document_describes_every_route_and_no_other() -> None:
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(route.method.lower(), route.path.replace(":path", "")) for route in ROUTES}
    assert len(described) == len(ROUTES)


def test_every_operation_has_a_summary_parameters_and_answers() -> None:
    names = []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert operation["summary"] and operation["tags"], path
            in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert "200" in operation["responses"]
            assert ("requestBody" in operation) == (method == "post" and not path.endswith(("/cancel", "/redeliver")))
            assert (operation.get("security") == []) == (path in OPEN_PATHS)
            if path not in OPEN_PATHS:
                error = operation["responses"]["default"]["content"]["application/json"]["schema"]
                assert error == {"$ref": "#/components/schemas/ErrorAnswer"}
    assert len(names) == len(set(names))


def test_every_reference_has_a_schema_and_every_schema_a_reference() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    referred = {each["$ref"] for each in walk(DOCUMENT) if isinstance(each, dict) and "$ref" in each}
    assert referred == {f"#/components/schemas/{name}" for name in schemas}
    links = {each["operationId"] for each in walk(DOCUMENT) if isinstance(each, dict) and "operationId" in each}
    assert links == {route.id for route in ROUTES}


def test_every_field_of_a_create_is_described() -> None:
    known = set(CreateBody.__struct_fields__)
    assert set(CreateResponse.__struct_fields__) - READ <= known
    assert known - set(CreateResponse.__struct_fields__) == {"access_programs", "image", "stream_options"}


# -- the document and the checks are made from the same types

VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 16, 2000, 2**53, 1.5, -2, 2.5),
    *("", "x", "auto", "low", "a b", "24h", "i" * 128, "i" * 129, "x" * 513),
    *([], [1], ["x"], ["reasoning.encrypted_content"]),
    *({}, {"a": 1}, {"a": "b"}, {"k" * 65: "v"}, {"k": "v" * 513}, {str(n): "" for n in range(17)}),
    *({"id": "c"}, {"id": "c d"}, {"effort": "high"}, {"effort": "x"}, {"mode": "x"}, {"mode": 1}),
    *({"prewarm": True}, {"prewarm": 1}, {"verbosity": "loud"}, {"include_obfuscation": 1}),
    *({"format": {"type": "text"}}, {"format": {"type": "json_schema"}}),
    {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    *([{"type": "compaction"}], [{"type": "pruning"}], [{"type": "compaction", "compact_threshold": 5}]),
    *([{"type": "function", "name": "f"}], [{"type": "function", "name": "a b"}], [{"type": "mcp"}], [{"type": "web"}]),
    *([{"role": "user", "content": "x"}], [{"role": "x", "content": "x"}], [{"id": "msg_1"}], [{"type": "reasoning"}]),
]
# A kind that is not known may hold anything, and these fields depend on others.
LOOSE = {"input", "tools", "tool_choice"}


@pytest.mark.parametrize("name", CreateBody.__struct_fields__)
def test_a_body_is_valid_by_the_document_exactly_if_the_server_accepts_it(name: str) -> None:
    is_valid = validator("CreateBody").is_valid
    for value in VALUES:
        body = {"model": "m", "input": "Hi", name: value}
        try:
            parse_create(body, CountingIds(), Limits())
            accepted = True
        except InvalidRequest:
            accepted = False
        if accepted or name not in LOOSE:
            assert is_valid(body) is accepted, value


@pytest.mark.parametrize(
    "details",
    [
        {"attempts": 2, "resumed_at": [5]},
        {"attempts": 2, "joints": [5]},
        {"queue": {"place": 1, "seconds": 0}},
    ],
)
def test_the_servers_own_details_are_described_under_both_names_of_resumptions(details: Json) -> None:
    assert validator("OutliveDetails").is_valid(details)
    assert not validator("OutliveDetails").is_valid(dict.fromkeys(details, "x"))
    assert DOCUMENT["components"]["schemas"]["OutliveDetails"]["properties"]["joints"]["deprecated"] is True


def validator(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema_rs.validator_for(schema)
