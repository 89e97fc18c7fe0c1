"""The OpenAPI document, made of the route table and the shapes that it names."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from outlive import __version__
from outlive.core.events import Json
from outlive.core.requests.checks import REF, REFERRED
from outlive.http.openapi import shapes
from outlive.http.request import Reply, Request

ABOUT = (
    "Responses and Conversations whose answers outlive the connection and the process. "
    "Works with OpenAI's clients as they are."
)

Handler: TypeAlias = Callable[[Request], Awaitable[Reply | None]]


class Route(Struct, frozen=True):
    """One route: the handler of its requests, and all that the document says of it."""

    method: str
    path: str
    handler: Handler
    id: str
    answer: type[Struct] | Literal["Item"]
    summary: str
    body: type[Struct] | None = None
    query: type[Struct] | None = None
    streams: type[Struct] | None = None  # an event of the stream that it may answer with instead
    repeatable: bool = False  # takes an Idempotency-Key
    refuses: tuple[int, ...] = ()  # besides the statuses that follow from the other fields
    open: bool = False  # needs no key
    leads_to: tuple[str, ...] = ()  # operations that take the id of what this one answers with

    @property
    def tag(self) -> str:
        noun = self.path.split("/")[2] if self.path.startswith("/v1/") else "server"
        return noun.capitalize()

    @property
    def statuses(self) -> list[int]:
        """The statuses of its errors."""
        found = {*self.refuses, *(() if self.open else (401, 403))}
        found |= {400, 413, 415} if self.body is not None else set()
        found |= {400} if self.query is not None else set()
        found |= {404} if "{" in self.path else set()
        return sorted(found | ({409} if self.repeatable else set()))


def make_document(routes: Sequence[Route]) -> Json:
    """Make the document; the table's order is the document's."""
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path.replace(":path", ""), {})[route.method.lower()] = _describe(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outlive", "version": __version__, "summary": ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": _make_schemas(routes),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(route: Route) -> Json:
    described: Json = {
        "operationId": route.id,
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [*_path_parameters(route.path), *_parameters(route.query, "query")],
        "responses": _describe_answers(route),
    }
    if route.repeatable:
        described["parameters"] += _parameters(shapes.Repeatable, "header")
    if route.body is not None:
        described["requestBody"] = {"required": True, "content": _json(route.body)}
    if route.open:
        described["security"] = []
    return described


def _describe_answers(route: Route) -> Json:
    content = _json(route.answer)
    if route.streams is not None:
        content["text/event-stream"] = {"schema": _streamed(route.streams)}
    found: Json = {"200": {"description": "Done.", "content": content}}
    if route.leads_to:
        found["200"]["links"] = {
            name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in route.leads_to
        }
    for status in route.statuses:
        found[str(status)] = {"description": f"{HTTPStatus(status).phrase}.", "content": _json(shapes.ErrorAnswer)}
    if route.answer is shapes.Health:
        found["503"] = {"description": "Not ready.", "content": content}
    else:
        found["default"] = {"description": "Another error.", "content": _json(shapes.ErrorAnswer)}
    return found


def _streamed(shape: type[Struct]) -> Json:
    """Describe one event of a stream: its data is JSON, but for the last."""
    payload = {"contentMediaType": "application/json", "contentSchema": _refer(shape)}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, payload]},
        },
    }


def _json(shape: type[Struct] | str) -> Json:
    return {"application/json": {"schema": _refer(shape)}}


def _refer(shape: type[Struct] | str) -> Json:
    return {"$ref": REF.format(name=shape if isinstance(shape, str) else shape.__name__)}


def _path_parameters(path: str) -> Iterable[Json]:
    for name in re.findall(r"{(\w+)", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameters(shape: type[Struct] | None, place: str) -> Iterable[Json]:
    """Describe the fields of a shape as parameters that may all be left out."""
    if shape is None:
        return
    (_, schemas) = msgspec.json.schema_components((shape,), ref_template=REF)
    for name, schema in schemas[shape.__name__]["properties"].items():
        parameter: Json = {"name": name, "in": place, "required": False, "schema": schema}
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        yield parameter


def _make_schemas(routes: Sequence[Route]) -> Json:
    sent = [*REFERRED, *(route.body for route in routes if route.body is not None)]
    given = [shape for route in routes for shape in (route.answer, route.streams) if isinstance(shape, type)]
    (_, requests) = msgspec.json.schema_components(sent, ref_template=REF)
    (_, replies) = msgspec.json.schema_components([*given, shapes.ErrorAnswer], ref_template=REF)
    for schema in requests.values():
        _allow_null(schema)
    schemas = replies | requests
    return {name: schemas[name] for name in sorted(schemas)} | {"Item": shapes.ITEM}


def _allow_null(schema: Json) -> None:
    """Let each field of a request that may be left out be null, which is the same."""
    null = {"type": "null"}
    for name, described in schema["properties"].items():
        if name not in schema.get("required", ()) and null not in described.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [described, null]}
