"""Requests to a recorded database once it is open: waiting for runs that were in flight, and continuing what has ended.

The recording made them with the version that wrote the database, the tests make them with the present one. Both
must get the same answers, and send models the same. Ids and times of what is new differ: they are replaced first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.recorded.server import client_of, replay
from tests.recorded.upstream import Upstream

Json = dict[str, Any]

_ID = re.compile(r"\b([a-z]+)_[0-9a-f]{48}\b")
_TIME = re.compile(r'"(created_at|completed_at)":(\d+)(?:\.\d+)?')
_SEALED = re.compile(r"outlive\.1\.[A-Za-z0-9+/=]+")

WEATHER: Json = {
    "type": "function", "name": "weather", "strict": None,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip
SERVER_TOOLS: Json = {"type": "mcp", "server_label": "outlive"}
DESK: Json = {"type": "mcp", "server_label": "desk"}


def find_known(recorded: Json) -> set[str]:
    """Return the ids and the sealed texts of what was recorded before the last server was killed."""
    before = [recorded["names"], recorded["answers"], [run["frames"] for run in recorded["unfinished"]]]
    return {found.group() for pattern in (_ID, _SEALED) for found in pattern.finditer(json.dumps(before))}


class Equalizer:
    """Replaces ids and times that are not in the recording: ids by a count, times by 0, sealed texts by a word."""

    def __init__(self, known: set[str], recorded_at: float) -> None:
        self._known = known
        self._recorded_at = recorded_at
        self._names: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        text = _ID.sub(self._replace_id, text)
        text = _SEALED.sub(self._replace_sealed, text)
        return _TIME.sub(self._replace_time, text)

    def _replace_id(self, found: re.Match[str]) -> str:
        if found.group() in self._known:
            return found.group()
        return self._names.setdefault(found.group(), f"{found[1]}_NEW{len(self._names)}")

    def _replace_sealed(self, found: re.Match[str]) -> str:
        return found.group() if found.group() in self._known else "outlive.1.SEALED"

    def _replace_time(self, found: re.Match[str]) -> str:
        return f'"{found[1]}":0' if int(found[2]) > self._recorded_at else found.group()


class Step(NamedTuple):
    """A request to an opened database; those that ask a model have one of their own."""

    kind: str
    method: str
    path: str
    body: Json | None = None
    owner: str = "ann"
    headers: dict[str, str] | None = None


def make_steps(names: dict[str, str], compacted: list[Json]) -> Iterator[Step]:
    """Yield the requests in their order; `names` are the ids of what was recorded."""
    yield from _continue_chains(names)
    yield from _continue_conversations(names)
    yield from _answer_calls(names)
    yield from _use_items(names, compacted)
    yield from _continue_recovered(names)


def create(kind: str, model: str, owner: str = "ann", **fields: Any) -> Step:
    body = {"model": model, "input": "And then?", "stream": True, **fields}
    return Step(kind, "POST", "/v1/responses", body, owner)


def _continue_chains(names: dict[str, str]) -> Iterator[Step]:
    chat = (
        "plain", "streamed", "background", "background streamed", "third in a chain", "fork", "fork of a fork",
        "fork of a conversation", "reasoning", "reasoning summary", "reasoning encrypted", "refusal", "logprobs",
        "server tools", "mcp tools", "failing mcp tool", "approved", "denied", "client outputs",
        "compaction by trigger", "compaction by threshold", "cancelled", "out of tokens", "filtered", "interrupted",
        "continued twice", "tools continued", "odd characters", "kinds of items", "hosted tools", "messages", "agent",
        "not generated", "large", "open-responses names",
    )  # fmt: skip
    for kind in chat:
        model = f"plain/yes-{kind.replace(' ', '-')}"
        yield create(f"chain: {kind}", model, previous_response_id=names[kind])
    yield create("chain: hosted tools there", "responses/hosted-again", previous_response_id=names["hosted tools"])
    yield create("chain: reattached there", "reattach/run-again", previous_response_id=names["reattached"])
    yield create("chain: messages there", "claude/speak-again", previous_response_id=names["messages"])
    yield create("chain: another agent's turn", "clerk", previous_response_id=names["agent"])
    yield create(
        "chain: tools again", "plain/till-again-9", tools=[SERVER_TOOLS], previous_response_id=names["server tools"]
    )
    yield create(
        "chain: listed tools again", "plain/desk-again-post", tools=[DESK], previous_response_id=names["mcp tools"]
    )
    yield create("chain: past a deleted response", "plain/yes-deleted", previous_response_id=names["after a deleted"])
    yield create("chain: of a failed response", "plain/yes-failed", previous_response_id=names["refused by upstream"])
    yield create("chain: of another's", "plain/yes-other", owner="bob", previous_response_id=names["plain"])


def _continue_conversations(names: dict[str, str]) -> Iterator[Step]:
    for kind in ("conversation", "compacted conversation", "emptied conversation"):
        conversation = names[kind]
        model = f"plain/yes-{kind.replace(' ', '-')}"
        yield create(f"{kind}: a turn", model, conversation=conversation)
        yield Step(f"{kind}: its items", "GET", f"/v1/conversations/{conversation}/items?order=asc&limit=100")
    items = f"/v1/conversations/{names['conversation']}/items"
    yield Step("conversation: an item more", "POST", items, {"items": [{"role": "user", "content": "One more."}]})
    yield Step("conversation: an item less", "DELETE", f"{items}/{names['item of the conversation']}")
    yield create("conversation: another turn", "plain/yes-another-turn", conversation=names["conversation"])
    yield Step("conversation: its items then", "GET", f"{items}?order=asc&limit=100")
    yield Step("conversation: other metadata", "POST", items.removesuffix("/items"), {"metadata": {"now": "changed"}})


def _answer_calls(names: dict[str, str]) -> Iterator[Step]:
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "sunny"} for call_id in ("call_a", "call_b")
    ]
    yield create(
        "answer: calls of functions", "plain/client-open", input=outputs, tools=[WEATHER],
        previous_response_id=names["client calls"],
    )  # fmt: skip
    custom = {"type": "custom_tool_call_output", "call_id": "call_c", "output": "noted"}
    yield create("answer: a custom call", "plain/yes-custom", input=[custom], previous_response_id=names["custom call"])
    output = {"type": "function_call_output", "call_id": "call_w", "output": "rain"}
    yield create(
        "answer: the client's part", "plain/both-open", input=[output], tools=[WEATHER, SERVER_TOOLS],
        previous_response_id=names["calls of both"],
    )  # fmt: skip
    use = {"type": "function_call_output", "call_id": "toolu_1", "output": "snow"}
    yield create(
        "answer: a tool use", "claude/use", input=[use], tools=[WEATHER], previous_response_id=names["tool use"]
    )
    approval = {"type": "mcp_approval_response", "approval_request_id": names["approval request"], "approve": True}
    yield create(
        "answer: an approval", "plain/desk-approved-post", input=[approval], tools=[DESK],
        previous_response_id=names["approval asked"],
    )  # fmt: skip


def _use_items(names: dict[str, str], compacted: list[Json]) -> Iterator[Step]:
    reference = {"type": "item_reference", "id": names["next item"]}
    deleted = {"type": "item_reference", "id": names["deleted item"]}
    question = {"role": "user", "content": "What was that?"}
    yield create("items: a reference", "plain/yes-reference", input=[reference, question])
    yield create("items: a reference to a deleted one", "plain/yes-gone", input=[deleted, question])
    yield create(
        "items: a reference to an output", "plain/yes-output", input=[{"id": names["item of plain"]}, question]
    )
    yield create("items: compacted by the endpoint", "plain/yes-compacted", input=[*compacted, question])
    yield create("items: compacted for another", "plain/yes-stolen", owner="bob", input=[*compacted, question])
    yield Step("deleting: a response", "DELETE", f"/v1/responses/{names['background']}")
    yield Step("deleting: is it gone", "GET", f"/v1/responses/{names['background']}")
    yield Step("deleting: a conversation", "DELETE", f"/v1/conversations/{names['emptied conversation']}")
    yield Step("deleting: are its items gone", "GET", f"/v1/conversations/{names['emptied conversation']}/items")


def _continue_recovered(names: dict[str, str]) -> Iterator[Step]:
    conversation = names["conversation in flight"]
    yield create("recovered: the next turn", "plain/yes-recovered", owner="bob", conversation=conversation)
    yield Step(
        "recovered: its items", "GET", f"/v1/conversations/{conversation}/items?order=asc&limit=100", None, "bob"
    )
    chains = (
        "text in flight", "tool in flight", "mcp tool in flight", "run in flight", "queued", "large in flight",
        "foreground in flight", "agent in flight", "compacted in flight",
    )  # fmt: skip
    for kind in chains:
        model = f"plain/yes-after-{kind.replace(' ', '-')}"
        yield create(f"recovered: {kind}", model, owner="bob", previous_response_id=names[kind])


def take(step: Step, port: int, upstream: Upstream, known: set[str], recorded_at: float) -> Json:
    """Make the request of a step; return its answer and what it made the server ask of models."""
    equalize = Equalizer(known, recorded_at)
    answer = client_of(step.owner, port).request(step.method, step.path, step.body, **(step.headers or {}))
    model = str((step.body or {}).get("model")).partition("/")[2]
    return {
        "kind": step.kind,
        "status": answer.status,
        "type": answer.headers.get("content-type", ""),
        "answer": equalize(answer.body.decode()),
        "asked": [f"{asked['path']} {equalize(json.dumps(asked['body']))}" for asked in upstream.asked(model)],
    }


def recover(run: Json, port: int, known: set[str], recorded_at: float) -> Json:
    """Wait for the end of a run that was in flight; return it as it is retrieved and as it is replayed."""
    equalize = Equalizer(known, recorded_at)
    client = client_of(run["owner"], port)
    client.wait_ended(run["id"])
    frames = replay(client, run["id"]).decode()
    return {"answer": equalize(client.get(f"/v1/responses/{run['id']}").body.decode()), "replay": equalize(frames)}
