"""Records what a version of Outlive stores and answers, as fixtures of test_recorded.py.

    python -m tests.recorded.record CHECKOUT [FOLDER]

CHECKOUT is the folder of the version to record, with that version installed in its .venv. Run this from the top of the
repository, with the test extras installed. It runs servers of that version on SQLite and on a Postgres of its own,
with scripted models behind them, kills the last one while runs are in flight, and writes to FOLDER (else to
tests/recorded/data), for each database:

    sqlite.db.xz, postgres.sql.xz      the database as it was left
    sqlite.json.xz, postgres.json.xz   the answers of that version: before the end, and after it was started again

`xz -dc FILE` shows them. They stand for databases that are in use: keep them when a later version is recorded, too.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import socket
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.recorded.server import (
    DATA,
    DATABASES,
    Server,
    client_of,
    create,
    last_number,
    load_postgres,
    load_sqlite,
    read_available,
    replay,
)
from tests.recorded.steps import DESK, SERVER_TOOLS, WEATHER, find_known, make_steps, recover, take
from tests.recorded.upstream import Upstream
from tests.support.http_client import HttpClient
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

Json = dict[str, Any]

NOT_STORED = "text-that-is-not-stored"
LARGE = "large text " * 30_000  # more than a request may have to be written in one go
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
ODD = 'nul \x00, quote ", backslash \\, line\u2028separator, \U0001f600'
# As many runs of bob's as are in flight at the end: one more has to wait.
IN_FLIGHT = 13


# Every event that a server writes, but for those of tools that only upstreams know.
GROWING = (
    "output_text", "refusal", "reasoning_text", "reasoning", "reasoning_summary_text", "function_call_arguments",
    "custom_tool_call_input", "mcp_call_arguments",
)  # fmt: skip
EVENTS = {
    *(f"response.{what}" for what in ("created", "queued", "in_progress")),
    *(f"response.{what}" for what in ("completed", "incomplete", "failed", "cancelled")),
    *(f"response.{name}.added" for name in ("output_item", "content_part", "reasoning_summary_part")),
    *(f"response.{name}.done" for name in ("output_item", "content_part", "reasoning_summary_part")),
    *(f"response.{name}.delta" for name in GROWING),
    *(f"response.{name}.done" for name in GROWING),
    *(f"response.mcp_call.{what}" for what in ("in_progress", "completed", "failed")),
    *(f"response.mcp_list_tools.{what}" for what in ("in_progress", "completed")),
    *("response.compaction.compacting", "outlive:tool.progress", "response.web_search_call.searching"),
}


class Recorder:
    """One database: the servers that write it, one after the other, and what they answered."""

    def __init__(self, python: str, folder: Path, database: str, upstream: Upstream) -> None:
        self.python = python
        self.folder = folder
        self.database = database
        self.upstream = upstream
        self.names: dict[str, str] = {}  # ids by kind
        self.compacted: list[Json] = []
        self.answers: list[Json] = []
        self.server = self.make_server()
        self.ann = self.bob = HttpClient(0)

    def make_server(self, *flags: str) -> Server:
        server = Server(self.python, self.folder, self.database, self.upstream.url, *flags)
        # Workers are named after their machine. They are recorded as those of another.
        (self.folder / "site").mkdir(exist_ok=True)
        (self.folder / "site" / "sitecustomize.py").write_text(
            "import socket\nsocket.gethostname = lambda: 'recorded'\n"
        )
        server.env["PYTHONPATH"] = "site"
        return server

    def start(self, *flags: str) -> None:
        self.server = self.make_server(*flags).start()
        self.ann, self.bob = client_of("ann", self.server.port), client_of("bob", self.server.port)

    # -- kinds of responses

    def create(self, kind: str, model: str, input: object = "Hi", **fields: Any) -> Json:
        body = create(self.ann, model, input, **fields)
        self.names[kind] = body["id"]
        return body

    def background(self, client: HttpClient, kind: str, model: str, input: object = "Hi", **fields: Any) -> str:
        self.names[kind] = create(client, model, input, background=True, **fields)["id"]
        return self.names[kind]

    def stream(self, kind: str, model: str, input: object = "Hi", **fields: Any) -> None:
        """Create a streamed response; what was streamed must be what is replayed."""
        answer = self.ann.post("/v1/responses", {"model": model, "input": input, "stream": True, **fields})
        assert answer.status == 200, answer
        self.names[kind] = created_id(answer.body)
        assert replay(self.ann, self.names[kind]) == answer.body

    def make_plain(self) -> None:
        self.create("first", "plain/yes", metadata={"name": "first"})
        plain = self.create(
            "plain", "plain/yes", "Are you there?", instructions="Be brief.", temperature=0.5, top_p=0.9,
            max_output_tokens=50, user="someone", metadata={"name": "plain", "of": "all"},
            a_field_of_the_upstream={"kept": [1, 2.5, None]},
        )  # fmt: skip
        self.names["item of plain"] = plain["output"][0]["id"]
        self.stream("streamed", "plain/yes", "Are you there?")
        self.background(self.ann, "background", "plain/yes")
        self.stream("background streamed", "plain/yes", background=True)
        self.ann.wait_ended(self.names["background"])
        self.create("reasoning", "plain/think")
        self.stream("reasoning summary", "plain/think", reasoning={"effort": "low", "summary": "auto"})
        self.create("reasoning encrypted", "plain/think", include=["reasoning.encrypted_content"])
        self.stream("refusal", "plain/refuse")
        self.stream("logprobs", "plain/probable", include=["message.output_text.logprobs"], top_logprobs=1)
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}
        form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
        self.create("structured", "plain/json", text={"format": form, "verbosity": "low"})
        self.stream("odd characters", "plain/odd", ODD, metadata={"odd": ODD})
        self.create("not generated", "plain/yes", "Only kept.", generate=False)
        self.create("large", "plain/yes", LARGE)
        content: list[Json] = [
            {"type": "input_text", "text": "Look."},
            {"type": "input_image", "image_url": PIXEL, "detail": "low"},
            {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="},
        ]
        items = [
            {"role": "developer", "content": "Be kind."},
            {"type": "message", "role": "user", "content": content, "a_field_of_the_client": 1},
            {"type": "function_call", "call_id": "call_x", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_x", "output": [{"type": "input_text", "text": "hot"}]},
            {"type": "item_reference", "id": self.names["item of plain"]},
            {"role": "user", "content": "And now?"},
        ]
        self.create("kinds of items", "plain/yes", items)

    def make_endings(self) -> None:
        self.stream("out of tokens", "plain/cut-length", max_output_tokens=16)
        self.create("filtered", "plain/cut-content_filter")
        for kind, model in (("refused by upstream", "fail-400"), ("broken upstream", "fail-500"), ("too long", "long")):
            self.ann.wait_ended(self.background(self.ann, kind, f"plain/{model}"))
        cancelled = self.background(self.ann, "cancelled", "plain/half-cancelled")
        self.upstream.wait_reached("half-cancelled")
        read_available(self.ann, cancelled)
        assert self.ann.post(f"/v1/responses/{cancelled}/cancel").json()["status"] == "cancelled"

    def make_tool_calls(self) -> None:
        self.stream("client calls", "plain/client", tools=[WEATHER], tool_choice="auto", parallel_tool_calls=True)
        answered = self.create("client calls answered", "plain/client", tools=[WEATHER])
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": "fog"} for call_id in ("call_a", "call_b")
        ]
        self.create("client outputs", "plain/client", outputs, tools=[WEATHER], previous_response_id=answered["id"])
        self.stream("custom call", "plain/custom", tools=[{"type": "custom", "name": "note"}])
        self.stream("server tools", "plain/till-5", tools=[SERVER_TOOLS])
        self.create("server tools limited", "plain/till-6", tools=[SERVER_TOOLS], max_tool_calls=1)
        self.stream("calls of both", "plain/both", tools=[WEATHER, SERVER_TOOLS])
        self.stream("mcp tools", "plain/desk-post", tools=[{**DESK, "allowed_tools": ["post", "stamp"]}])
        self.create("failing mcp tool", "plain/desk-shred", tools=[DESK])
        asking = {**DESK, "require_approval": "always"}
        for kind, answer in (("approved", True), ("denied", False), ("approval asked", None)):
            asked = self.create(f"{kind} before", "plain/desk-post", tools=[asking])
            request = asked["output"][-1]
            assert request["type"] == "mcp_approval_request", asked
            if answer is None:
                self.names[kind], self.names["approval request"] = asked["id"], request["id"]
                continue
            reply = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": answer}
            self.create(kind, "plain/desk-post", [reply], tools=[asking], previous_response_id=asked["id"])
        self.create("agent", "clerk", "second")

    def make_dialects(self) -> None:
        self.stream("hosted tools", "responses/search", tools=[{"type": "web_search"}])
        self.create("hosted tools chain", "responses/next", previous_response_id=self.names["hosted tools"])
        self.stream("reattached", "reattach/run")
        self.stream("messages", "claude/speak", reasoning={"effort": "low"})
        self.create("messages chain", "claude/next", previous_response_id=self.names["messages"])
        self.stream("tool use", "claude/call", tools=[WEATHER])

    def make_chains(self) -> None:
        first = self.create("first in a chain", "plain/yes", "One")
        second = self.create("second in a chain", "plain/yes", "Two", previous_response_id=first["id"])
        self.stream("third in a chain", "plain/yes", "Three", previous_response_id=second["id"], instructions="Now.")
        fork = self.create("fork", "plain/yes", "Or two", previous_response_id=first["id"])
        self.create("next in a fork", "plain/yes", "Or three", previous_response_id=fork["id"])
        self.create("fork of a fork", "plain/yes", "Or else", previous_response_id=fork["id"])
        deleted = self.create("deleted", "plain/yes", "Not for long")
        self.create("after a deleted", "plain/yes", "For long", previous_response_id=deleted["id"])
        assert self.ann.delete(f"/v1/responses/{deleted['id']}").status == 200
        self.create("not stored", "plain/yes", NOT_STORED, store=False)

    def make_conversations(self) -> None:
        begun = [
            {"role": "user", "content": "Before"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Indeed"}]},
            {"role": "user", "content": "To be deleted"},
        ]
        conversation = self.converse("conversation", items=begun, metadata={"topic": "weather"})
        items = f"/v1/conversations/{conversation}/items"
        listed = self.ann.get(f"{items}?order=asc").json()["data"]
        for name, item in zip(("item of the conversation", "next item", "deleted item"), listed, strict=True):
            self.names[name] = item["id"]
        turn = self.create("first turn", "plain/yes", "One", conversation=conversation)
        self.stream("second turn", "plain/till-5", "Two", conversation={"id": conversation}, tools=[SERVER_TOOLS])
        self.create("fork of a conversation", "plain/yes", "Aside", previous_response_id=turn["id"])
        self.ann.wait_ended(self.background(self.ann, "failed turn", "plain/fail-400", "No", conversation=conversation))
        assert self.ann.post(items, {"items": [{"role": "user", "content": "By the way"}]}).status == 200
        assert self.ann.delete(f"{items}/{self.names['deleted item']}").status == 200
        assert self.ann.post(items.removesuffix("/items"), {"metadata": {"topic": "rain"}}).status == 200
        self.create("last turn", "plain/yes", "Three", conversation=conversation)
        emptied = self.converse("emptied conversation", items=begun[:1])
        (item,) = self.ann.get(f"/v1/conversations/{emptied}/items").json()["data"]
        assert self.ann.delete(f"/v1/conversations/{emptied}/items/{item['id']}").status == 200
        gone = self.converse("deleted conversation", items=begun)
        self.create("turn of a deleted conversation", "plain/yes", conversation=gone)
        assert self.ann.delete(f"/v1/conversations/{gone}").status == 200

    def converse(self, kind: str, **fields: Any) -> str:
        self.names[kind] = self.ann.post("/v1/conversations", fields).json()["id"]
        return self.names[kind]

    def make_compactions(self) -> None:
        long = [{"role": "user", "content": "It rains. " * 600}, {"role": "assistant", "content": "It does."}]
        question = {"role": "user", "content": "Does it?"}
        trigger = {"type": "compaction_trigger"}
        self.stream("compaction by trigger", "plain/sum", [*long, trigger])
        manage = [{"type": "compaction", "compact_threshold": 1000}]
        self.stream("compaction by threshold", "plain/sum", [*long, question], context_management=manage)
        conversation = self.converse("compacted conversation", items=long)
        self.create("compacting turn", "plain/sum", "Does it?", conversation=conversation, context_management=manage)
        answer = self.ann.post("/v1/responses/compact", {"model": "plain/sum", "input": [*long, question]})
        assert answer.status == 200, answer
        self.compacted = answer.json()["output"]

    def make_keyed(self) -> None:
        """Requests with an idempotency key, whose repetition finds what was made the first time."""
        body = {"model": "plain/yes", "input": "Only once"}
        for kind, more in (
            ("keyed", {}),
            ("keyed stream", {"stream": True}),
            ("keyed background", {"background": True}),
        ):
            answer = self.ann.post("/v1/responses", body | more, idempotency_key=kind)
            assert answer.status == 200, answer
            if kind == "keyed background":
                self.ann.wait_ended(answer.json()["id"])
        self.names["keyed"] = self.ann.post("/v1/responses", body, idempotency_key="keyed").json()["id"]

    # -- runs that are cut off

    def begin_cut(self) -> None:
        """Start what the next two servers continue."""
        for name in ("81", "ended"):
            self.hold_tool(name)
        conversation = self.bob.post("/v1/conversations", {"items": [{"role": "user", "content": "A story"}]}).json()[
            "id"
        ]
        self.names["conversation in flight"] = conversation
        self.background(self.ann, "continued twice", "prefill/story-ended")
        self.background(self.bob, "text in flight", "prefill/story-kept", conversation=conversation)
        self.background(self.ann, "interrupted", "plain/half-ended")
        self.background(self.ann, "run again", "plain/late-ended")
        self.background(self.bob, "last attempt in flight", "plain/late-kept")
        self.background(self.ann, "tools continued", "plain/till-81", tools=[SERVER_TOOLS])
        self.background(self.ann, "agent continued", "clerk", "ended")
        self.background(self.ann, "run reattached", "reattach/held-ended")
        secret = {**DESK, "authorization": "token-of-ann"}
        self.background(self.ann, "mcp tool repeated", "plain/desk-heldended-stamp", tools=[secret])
        for name in ("story-ended:5", "story-kept:5", "half-ended", "late-ended", "late-kept", "held-ended",
                     "desk-heldended-stamp"):  # fmt: skip
            self.upstream.wait_reached(name)
        self.wait_tools("81", "ended")
        for kind in ("continued twice", "interrupted", "tools continued", "agent continued", "run reattached",
                     "mcp tool repeated"):  # fmt: skip
            read_available(self.ann, self.names[kind])
        read_available(self.bob, self.names["text in flight"])

    def cut_again(self) -> None:
        self.upstream.release("story-ended:5", "story-kept:5", "late-ended", "held-ended", "desk-heldended-stamp")
        for name in ("81", "ended"):
            (self.folder / f"hold-{name}").unlink()
        self.start()
        for kind in ("interrupted", "run again", "tools continued", "agent continued", "run reattached",
                     "mcp tool repeated"):  # fmt: skip
            self.ann.wait_ended(self.names[kind])
        self.hold_tool("city-72")
        self.background(self.bob, "repeatable tool in flight", "plain/till-72", tools=[SERVER_TOOLS])
        self.upstream.wait_reached("story-ended:9")
        self.upstream.wait_reached("story-kept:9")
        self.upstream.wait_reached("late-kept", 2)
        self.wait_tools("city-72")
        read_available(self.bob, self.names["repeatable tool in flight"])
        read_available(self.ann, self.names["continued twice"])
        read_available(self.bob, self.names["text in flight"])
        self.server.kill()

    def leave_in_flight(self) -> list[Json]:
        """Fill the last server with runs, answer for all that has ended, and kill it."""
        self.upstream.release("story-ended:9", "story-kept:9", "story-ended:13")
        self.hold_tool("city-72")
        self.start("--max-running-per-owner", str(IN_FLIGHT))
        self.ann.wait_ended(self.names["continued twice"])
        self.upstream.wait_reached("story-kept:13")
        self.upstream.wait_reached("late-kept", 3)
        self.wait_tools("city-72")
        for name in ("71", "kept"):
            self.hold_tool(name)
        runs: list[tuple[str, str, str, Json]] = [
            ("interrupted in flight", "plain/half-kept", "Hi", {}),
            ("unseen in flight", "plain/late-once", "Hi", {"metadata": {"name": "unseen"}}),
            ("tool in flight", "plain/till-71", "Hi", {"tools": [SERVER_TOOLS]}),
            ("agent in flight", "clerk", "kept", {}),
            ("run in flight", "reattach/held-kept", "Hi", {}),
            ("large in flight", "plain/late-large", LARGE, {}),
            ("call in flight", "prefill/calling-kept", "Hi", {"tools": [WEATHER]}),
        ]
        for kind, model, asked, fields in runs:
            self.background(self.bob, kind, model, asked, **fields)
        # A client that may ask again in silence: until its answer is whole, the response is noted as unanswered.
        connection = self.bob.send(
            "/v1/responses",
            {"model": "prefill/story-front", "input": "Hi", "stream": True},
            x_stainless_retry_count="0",
        )
        self.names["foreground in flight"] = created_id(connection.getresponse().read1())
        secret = {**DESK, "authorization": "token-of-bob"}
        self.background(self.bob, "mcp tool in flight", "plain/desk-heldkept-stamp", tools=[secret])
        manage = [{"type": "compaction", "compact_threshold": 1000}]
        long = [
            {"role": "user", "content": "It snows. " * 600},
            {"role": "assistant", "content": "It does."},
            {"role": "user", "content": "Does it?"},
        ]
        self.background(self.bob, "compacted in flight", "prefill/sum-held", long, context_management=manage)
        self.background(self.bob, "queued", "plain/yes-queued")
        cancelled = self.background(self.bob, "cancelled in the queue", "plain/yes-never")
        assert self.bob.post(f"/v1/responses/{cancelled}/cancel").json()["status"] == "cancelled"
        held = (
            "story-front:5", "half-kept", "late-once", "held-kept", "late-large", "calling-kept",
            "desk-heldkept-stamp", "sum-held",
        )  # fmt: skip
        for name in held:
            self.upstream.wait_reached(name)
        self.wait_tools("71", "kept")
        in_flight = [
            "text in flight", "last attempt in flight", "repeatable tool in flight", "foreground in flight",
            *(run[0] for run in runs), "mcp tool in flight", "compacted in flight",
        ]  # fmt: skip
        assert len(in_flight) == IN_FLIGHT
        unfinished = []
        for kind in [*in_flight, "queued"]:
            frames = read_available(self.bob, self.names[kind])
            unfinished.append(
                {
                    "kind": kind,
                    "id": self.names[kind],
                    "owner": "bob",
                    "last": last_number(frames),
                    "frames": frames.decode(),
                }
            )
        statuses = {run["kind"]: self.bob.get(f"/v1/responses/{run['id']}").json()["status"] for run in unfinished}
        assert statuses.pop("queued") == "queued", statuses
        assert set(statuses.values()) == {"in_progress"}, statuses
        self.answer()
        self.server.kill()
        connection.close()
        return unfinished

    def hold_tool(self, name: str) -> None:
        (self.folder / f"reached-{name}").unlink(missing_ok=True)
        (self.folder / f"hold-{name}").touch()

    def wait_tools(self, *names: str) -> None:
        for name in names:
            wait_until((self.folder / f"reached-{name}").exists, f"the call of {name}")

    # -- answers

    def note(self, kind: str, path: str, owner: str = "ann", body: Json | None = None, **headers: str) -> Json:
        """Ask, and keep the question and its answer."""
        method = "GET" if body is None else "POST"
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = client_of(owner, self.server.port).request(method, path, body, **given)
        noted = {
            "kind": kind, "owner": owner, "method": method, "path": path, "body": body, "headers": given,
            "status": answer.status, "type": answer.headers.get("content-type", ""), "answer": answer.body.decode(),
        }  # fmt: skip
        self.answers.append(noted)
        return noted

    def answer(self) -> None:
        """Ask for all that has ended, in all the ways there are."""
        in_flight = {kind for kind in self.names if kind.endswith("in flight") or kind == "queued"}
        for kind, name in self.names.items():
            if name.startswith("resp_") and kind not in in_flight:
                self.answer_response(kind, name)
        self.answer_lists()
        self.answer_conversations()
        body = {"model": "plain/yes", "input": "Only once"}
        self.note("idempotency", "/v1/responses", "ann", body, idempotency_key="keyed")
        self.note("idempotency", "/v1/responses", "ann", body | {"stream": True}, idempotency_key="keyed stream")
        self.note(
            "idempotency", "/v1/responses", "ann", body | {"background": True}, idempotency_key="keyed background"
        )
        self.note("idempotency", "/v1/responses", "ann", body | {"input": "Twice"}, idempotency_key="keyed")
        for kind, name in self.names.items():
            if name.startswith("resp_") and kind not in in_flight:
                count = {"model": "plain/yes", "previous_response_id": name, "input": "So?"}
                self.note("input_tokens", "/v1/responses/input_tokens", "ann", count)
        count = {"model": "plain/yes", "conversation": self.names["conversation"]}
        self.note("input_tokens", "/v1/responses/input_tokens", "ann", count)

    def answer_response(self, kind: str, name: str) -> None:
        owner = "bob" if kind == "cancelled in the queue" else "ann"
        path = f"/v1/responses/{name}"
        found = self.note(kind, path, owner)
        whole = self.note(kind, f"{path}?stream=true", owner)
        if found["status"] == 200:
            last = last_number(whole["answer"].encode())
            for after in sorted({0, last // 2, last - 1, last, last + 1}):
                self.note(kind, f"{path}?stream=true&starting_after={after}", owner)
        self.note(kind, f"{path}/input_items", owner)
        self.note(kind, f"{path}/input_items?order=asc&limit=1", owner)
        self.note("another's", path, "ann" if owner == "bob" else "bob")

    def answer_lists(self) -> None:
        queries = [
            "limit=100", "limit=100&order=asc", "limit=7", f"limit=5&after={self.names['fork']}",
            f"limit=5&order=asc&after={self.names['fork']}", *(f"limit=100&status={status}" for status in
            ("completed", "incomplete", "failed", "cancelled", "queued", "in_progress", "failed,cancelled")),
            f"conversation={self.names['conversation']}", f"after={self.names['deleted']}",
        ]  # fmt: skip
        for query in queries:
            self.note("lists", f"/v1/responses?{query}")

    def answer_conversations(self) -> None:
        for query in ("", "?order=asc", "?limit=1", f"?after={self.names['compacted conversation']}"):
            self.note("lists of conversations", f"/v1/conversations{query}")
        for kind in ("conversation", "compacted conversation", "emptied conversation", "deleted conversation"):
            path = f"/v1/conversations/{self.names[kind]}"
            self.note(kind, path)
            for query in ("", "?order=asc&limit=100", "?order=asc&limit=3", "?limit=3"):
                self.note(kind, f"{path}/items{query}")
        items = f"/v1/conversations/{self.names['conversation']}/items"
        for item in ("item of the conversation", "deleted item"):
            self.note("conversation", f"{items}/{self.names[item]}")
        self.note("conversation", f"{items}?order=asc&limit=2&after={self.names['item of the conversation']}")

    def record(self) -> Json:
        """Write the database, and return what there is to know about it."""
        self.start()
        self.make_plain()
        self.make_endings()
        self.make_tool_calls()
        self.make_dialects()
        self.make_chains()
        self.make_conversations()
        self.make_compactions()
        self.make_keyed()
        self.server.terminate()
        self.start("--event-names", "open-responses")
        self.stream("open-responses names", "plain/think")
        self.begin_cut()
        self.server.kill()
        self.cut_again()
        unfinished = self.leave_in_flight()
        assert "Traceback" not in self.server.log, self.server.log
        return {
            "recorded_at": int(time.time()),
            "names": self.names,
            "compacted": self.compacted,
            "answers": self.answers,
            "unfinished": unfinished,
        }


def check_covered(recorded: Json) -> None:
    """Raise where a type of event was not recorded."""
    found = set(
        re.findall(r"^event: (\S+)$", "\n".join(answer["answer"] for answer in recorded["answers"]), re.MULTILINE)
    )
    assert found >= EVENTS, EVENTS - found


def created_id(stream: bytes) -> str:
    """Return the id of the response whose stream begins with these bytes."""
    return str(json.loads(stream.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"])


def finish(recorded: Json, server: Server, upstream: Upstream) -> None:
    """Add what the recorded version itself makes of its database afterwards."""
    known = find_known(recorded)
    for run in recorded["unfinished"]:
        run["recovered"] = recover(run, server.port, known, recorded["recorded_at"])
    recorded["mcp_calls"] = upstream.calls
    recorded["steps"] = [
        take(step, server.port, upstream, known, recorded["recorded_at"])
        for step in make_steps(recorded["names"], recorded["compacted"])
    ]


def dump_sqlite(database: Path) -> bytes:
    """Bring the log into the file, and return the file."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return database.read_bytes()


def dump_postgres(cluster: PostgresServer, name: str) -> bytes:
    """Return the database as SQL, without what only the dumping version of Postgres understands."""
    dumped = cluster.run("pg_dump", "--no-owner", "--no-privileges", "-d", cluster.url(name))
    lines = (
        line for line in dumped.splitlines(keepends=True) if not line.startswith(("--", "\\restrict", "\\unrestrict"))
    )
    kept = "".join(line for line in lines if "transaction_timeout" not in line)
    return kept.encode()


def check_clean(name: str, content: bytes, *folders: Path) -> None:
    """Raise where a fixture holds what belongs to this machine, or what was not to be stored."""
    for word in (f"{socket.gethostname()}-", NOT_STORED, "token-of-", *map(str, folders), f"{Path.home()}/"):
        assert word.encode() not in content, f"{name} holds {word}"


def record(python: str, kind: str, folder: Path, cluster: PostgresServer, data: Path) -> None:
    """Write the fixtures of one database."""
    url = f"sqlite:///{folder / 'outlive.db'}" if kind == "sqlite" else cluster.url("recorded")
    with Upstream() as upstream:
        recorder = Recorder(python, folder, url, upstream)
        try:
            recorded = recorder.record()
        finally:
            recorder.server.kill()
    database = dump_sqlite(folder / "outlive.db") if kind == "sqlite" else dump_postgres(cluster, "recorded")
    check_covered(recorded)
    check_clean(kind, database, folder, cluster.folder)
    dump = data / ("sqlite.db.xz" if kind == "sqlite" else "postgres.sql.xz")
    dump.write_bytes(lzma.compress(database, preset=9))
    # Times have whole seconds: nothing that comes now may have one of those that were recorded.
    wait_until(lambda: time.time() > recorded["recorded_at"] + 1, "the next second")
    again = folder / "again"
    url = load_sqlite(dump, again) if kind == "sqlite" else load_postgres(dump, cluster, "again")
    with Upstream() as upstream:
        upstream.release_all()
        with Server(python, again, url, upstream.url) as server:
            finish(recorded, server, upstream)
    answers = json.dumps(recorded, indent=1).encode()
    (data / f"{kind}.json.xz").write_bytes(lzma.compress(answers, preset=9))
    print(f"{kind}: {len(recorded['answers'])} answers, {len(database)} and {len(answers)} bytes before packing")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what a version of Outlive stores and answers.")
    parser.add_argument("checkout", type=Path, help="the folder of that version, with its .venv")
    parser.add_argument("folder", type=Path, nargs="?", default=DATA, help="where to put the fixtures")
    given = parser.parse_args()
    python = str((given.checkout / ".venv" / "bin" / "python").absolute())
    given.folder.mkdir(exist_ok=True)
    cluster = PostgresServer().create()
    try:
        cluster.sql("CREATE DATABASE recorded")
        with tempfile.TemporaryDirectory() as folder:
            for kind in DATABASES:
                record(python, kind, Path(folder) / kind, cluster, given.folder)
    finally:
        cluster.remove()


if __name__ == "__main__":
    main()
