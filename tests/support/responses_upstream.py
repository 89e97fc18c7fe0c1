"""An upstream that speaks the Responses API: scripted like the other one, as strict as OpenAI, with a background."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from functools import partial
from typing import Any

from aiohttp import web
from openai.types.responses import (
    ResponseCustomToolCallOutputParam,
    ResponseCustomToolCallParam,
    ResponseFunctionToolCallParam,
)
from openai.types.responses import response_input_item_param as official
from pydantic import TypeAdapter

from tests.support.responses_events import Item, answer, frames, message
from tests.support.upstream import (
    TIMEOUT_SECONDS,
    FakeUpstream,
    Gate,
    Pause,
    Refuse,
    Script,
    Step,
    UpstreamCall,
    _Cut,
    _Hang,
)

Json = dict[str, Any]

_OFFICIAL = {
    "function_call": ResponseFunctionToolCallParam, "function_call_output": official.FunctionCallOutput,
    "custom_tool_call": ResponseCustomToolCallParam,
    "custom_tool_call_output": ResponseCustomToolCallOutputParam,
    "shell_call": official.ShellCall, "shell_call_output": official.ShellCallOutput,
    "apply_patch_call_output": official.ApplyPatchCallOutput, "computer_call_output": official.ComputerCallOutput,
}  # fmt: skip
# By their type, the items that are checked against the SDK's own types.
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(shape) for kind, shape in _OFFICIAL.items()}
_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
_NEVER = {"metadata", "conversation", "previous_response_id"}


def steps(*items: Item, **fields: Any) -> list[Step]:
    """A whole answer, frame by frame."""
    return list(frames(answer(*items, **fields)))


def say(*pieces: str) -> list[Step]:
    return steps(message(*pieces))


def say_with(*pieces: str, gates: dict[int, Step] | None = None) -> list[Step]:
    """An answer of text, with steps of another kind before some of its pieces."""
    played = say(*pieces)
    for n, step in sorted((gates or {}).items(), reverse=True):
        played.insert(4 + n, step)  # created, in progress, item and part stand before the first piece
    return played


class Run:
    """A run in the upstream's background: it goes on with or without readers."""

    def __init__(self, run_id: str, asked: UpstreamCall) -> None:
        self.id = run_id
        self.asked = asked
        self.frames: list[bytes] = []
        self.ended = False
        self.cancelled = False
        self.cuts = 0
        self.changed = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None

    def has_more(self, sent: int, cuts: int) -> bool:
        return sent < len(self.frames) or self.ended or self.cuts != cuts


class ResponsesUpstream(FakeUpstream):
    """Refuses what OpenAI refuses, whatever the script says."""

    def __init__(self) -> None:
        super().__init__()
        self.otherwise = say("Hello", " there")
        self.refusals: list[str] = []
        self.runs: dict[str, Run] = {}
        self.deleted: list[str] = []
        self.cancelled: list[str] = []
        self.followed: list[tuple[str, int]] = []
        self.lost: set[str] = set()  # runs that it will not know any more
        self._run_numbers = itertools.count(1)

    def wait_deleted(self, count: int = 1, timeout: float = TIMEOUT_SECONDS) -> list[str]:
        """The runs whose copies are gone, once there are so many."""
        deadline = time.monotonic() + timeout
        while len(self.deleted) < count:
            assert time.monotonic() < deadline, "the upstream's copy was not deleted"
            time.sleep(0.01)
        return self.deleted

    async def _open(self) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/responses/{id}", self._follow)
        app.router.add_delete("/v1/responses/{id}", self._delete)
        app.router.add_post("/v1/responses/{id}/cancel", self._cancel)
        app.router.add_post("/{path:.*}", self._take)
        app.on_shutdown.append(self._stop_runs)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=2048)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _stop_runs(self, app: web.Application) -> None:
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, request: web.Request, asked: UpstreamCall, script: Script) -> web.StreamResponse:
        if not asked.path.endswith("/responses"):
            return await super()._play(request, asked, script)
        try:
            examine(asked.body)
        except ValueError as error:
            self.refusals.append(str(error))
            refusal = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
            return web.json_response({"error": refusal}, status=400)
        if not asked.body.get("background"):
            return await super()._play(request, asked, script)
        if script and isinstance(script[0], Refuse):
            return await super()._play(request, asked, script)
        run = Run(f"resp_bg{next(self._run_numbers)}", asked)
        self.runs[run.id] = run
        run.task = asyncio.create_task(_perform(run, script))
        return await _send(request, run, -1)

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        run = self._find(request)
        if run is None:
            return _missing()
        after = int(request.query.get("starting_after", -1))
        self.followed.append((run.id, after))
        return await _send(request, run, after)

    async def _cancel(self, request: web.Request) -> web.Response:
        run = self._find(request)
        if run is None:
            return _missing()
        run.cancelled = True
        self.cancelled.append(run.id)
        if run.task is not None:
            run.task.cancel()
        return web.json_response({"id": run.id, "object": "response", "status": "cancelled"})

    async def _delete(self, request: web.Request) -> web.Response:
        run = self._find(request)
        if run is None:
            return _missing()
        del self.runs[run.id]
        self.deleted.append(run.id)
        return web.json_response({"id": run.id, "object": "response", "deleted": True})

    def _find(self, request: web.Request) -> Run | None:
        run_id = request.match_info["id"]
        return None if run_id in self.lost else self.runs.get(run_id)


async def _perform(run: Run, script: Script) -> None:
    """Play the script into the run, with or without readers. Every event is about this run, and has its number."""
    for step in script:
        if isinstance(step, Gate):
            await step.wait_open()
        elif isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, _Hang):
            await asyncio.Event().wait()
        elif isinstance(step, _Cut):
            run.cuts += 1
        elif isinstance(step, bytes):
            event = json.loads(step.partition(b"data: ")[2])
            event["sequence_number"] = len(run.frames)
            if "response" in event:
                event["response"]["id"] = run.id
            run.frames += frames([event])
        async with run.changed:
            run.changed.notify_all()
    run.ended = True
    async with run.changed:
        run.changed.notify_all()


async def _send(request: web.Request, run: Run, after: int) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    sent, cuts = after + 1, run.cuts
    while True:
        async with run.changed:
            await run.changed.wait_for(partial(run.has_more, sent, cuts))
        if run.cuts != cuts:
            assert request.transport is not None
            request.transport.abort()
            return stream
        for frame in run.frames[sent:]:
            await stream.write(frame)
            sent += 1
        if run.ended:
            await stream.write_eof()
            return stream


def _missing() -> web.Response:
    error = {"message": "Response not found.", "type": "invalid_request_error", "param": "id", "code": None}
    return web.json_response({"error": error}, status=404)


def examine(body: Json) -> None:
    """Raise ValueError for what OpenAI would refuse, or for what it must not be asked (D4)."""
    if not body.get("background"):
        if body.get("store") is not False:
            raise ValueError("It was asked to keep something.")
    elif body.get("store") is not True:
        raise ValueError("Background needs store.")
    if body.get("stream") is not True:
        raise ValueError("It was not asked for a stream.")
    if _NEVER & body.keys():
        raise ValueError(f"It was sent {_NEVER & body.keys()}.")
    seen: set[str] = set()
    items: list[Json] = body["input"]
    for n, item in enumerate(items):
        _examine_item(item, n, items[n + 1] if n + 1 < len(items) else None)
        if item.get("id") in seen:
            raise ValueError(f"Duplicate item found with id {item['id']}.")
        if "id" in item:
            seen.add(item["id"])
    _examine_calls(items)


def _examine_item(item: Json, n: int, following: Json | None) -> None:
    kind = item["type"]
    for name, value in item.items():
        if value is None and kind in _PREFIXES:
            raise ValueError(f"Invalid type for 'input[{n}].{name}'.")
    if "id" in item and (len(item["id"]) > 64 or not item["id"].startswith(_PREFIXES.get(kind, ""))):
        raise ValueError(f"Invalid 'input[{n}].id': '{item['id']}'.")
    if kind in _ADAPTERS and "input_audio" not in str(item):  # a part that other servers know
        _ADAPTERS[kind].validate_python(item)
    if kind == "reasoning":
        if not item.get("encrypted_content"):
            raise ValueError(f"Item with id '{item['id']}' not found.")
        if item.get("content"):
            raise ValueError(f"Invalid 'input[{n}].content': array too long.")
        if following is None or following.get("role") == "user" or following["type"].endswith("_output"):
            raise ValueError(f"Item '{item['id']}' of type 'reasoning' was provided without its following item.")


def _examine_calls(items: list[Json]) -> None:
    asking = [
        item for item in items if not item["type"].endswith("_output") and item["type"] not in ("message", "reasoning")
    ]
    ids = [item["call_id"] for item in asking if isinstance(item.get("call_id"), str)]
    if len(ids) > len(set(ids)):
        raise ValueError(f"Duplicate 'call_id': {ids}.")
    calls = {item["call_id"] for item in items if item["type"] in ("function_call", "custom_tool_call")}
    outputs = {item["call_id"] for item in items if item["type"] in ("function_call_output", "custom_tool_call_output")}
    if calls - outputs:
        raise ValueError(f"No tool output found for function call {sorted(calls - outputs)[0]}.")
    if outputs - calls:
        raise ValueError(f"No tool call found for function call output {sorted(outputs - calls)[0]}.")
