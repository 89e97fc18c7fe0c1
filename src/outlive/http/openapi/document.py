"""/openapi.json: the document, made of the table of routes and the shapes that it names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from outlive import __version__
from outlive.core.events import Json
from outlive.http.openapi import answers, bodies, shapes
from outlive.http.openapi.operations import OPERATIONS, Operation
from outlive.http.openapi.shapes import REF, refer
from outlive.http.request import Reply, Request

ABOUT = (
    "Responses and Conversations whose answers outlive the connection and the process. "
    "Works with OpenAI's clients as they are."
)
# What every route may refuse with, besides its own reasons.
ALWAYS = (401, 403)


async def describe(request: Request) -> Reply:
    return Reply(await asyncio.to_thread(render))


@cache
def render() -> bytes:
    return msgspec.json.format(msgspec.json.encode(document()))


def document() -> Json:
    """The whole of it. The table's order is the document's."""
    paths: dict[str, Json] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path.replace(":path", ""), {})[method.lower()] = _describe(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outlive", "version": __version__, "summary": ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(path: str, operation: Operation) -> Json:
    described: Json = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.says,
        "parameters": [*_path_parameters(path), *_parameters(operation.query, "query")],
        "responses": _responses(operation),
    }
    if operation.repeatable:
        described["parameters"] += _parameters(bodies.Repeatable, "header")
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    if operation.open:
        described["security"] = []
    return described


def _responses(operation: Operation) -> Json:
    content = _json(operation.answer)
    if operation.streams is not None:
        content["text/event-stream"] = {"schema": _streamed(operation.streams)}
    found: Json = {"200": {"description": "Done.", "content": content}}
    if operation.leads_to:
        found["200"]["links"] = {
            name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in operation.leads_to
        }
    for status in sorted({*operation.refuses, *(() if operation.open else ALWAYS)}):
        found[str(status)] = {"description": f"{HTTPStatus(status).phrase}.", "content": _json(answers.ErrorAnswer)}
    if operation.answer is answers.Health:
        found["503"] = {"description": "Not ready.", "content": _json(answers.Health)}
    else:
        found["default"] = {"description": "Another error.", "content": _json(answers.ErrorAnswer)}
    return found


def _streamed(shape: type[Struct]) -> Json:
    """One event of a stream: its data is JSON, but for the last."""
    payload = {"contentMediaType": "application/json", "contentSchema": refer(shape.__name__)}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, payload]},
        },
    }


def _json(shape: type[Struct] | str) -> Json:
    return {"application/json": {"schema": refer(shape if isinstance(shape, str) else shape.__name__)}}


def _path_parameters(path: str) -> Iterable[Json]:
    for name in re.findall(r"{(\w+)", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameters(shape: type[Struct] | None, place: str) -> Iterable[Json]:
    """The fields of a shape, as parameters that may all be left out."""
    if shape is None:
        return
    (_, schemas) = msgspec.json.schema_components((shape,), ref_template=REF)
    for name, schema in schemas[shape.__name__]["properties"].items():
        parameter: Json = {"name": name, "in": place, "required": False, "schema": schema}
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        yield parameter


def _schemas() -> Json:
    used: list[Any] = [
        *shapes.KNOWN_ITEMS.values(),
        shapes.OtherItem,
        shapes.ItemReference,
        *shapes.PARTS,
        *shapes.TOOLS,
    ]
    for operation in OPERATIONS.values():
        used += [shape for shape in (operation.body, operation.answer, operation.streams) if isinstance(shape, type)]
    (_, schemas) = msgspec.json.schema_components([*used, answers.ErrorAnswer], ref_template=REF)
    return {name: schemas[name] for name in sorted(schemas)} | {"Item": answers.ITEM}
