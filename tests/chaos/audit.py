"""The audit after a round: of every response, every turn of every conversation, and every frame that was seen."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.client import ClusterClient
from tests.chaos.cluster import ChaosCluster
from tests.chaos.counts import Counts, Turn
from tests.chaos.scripts import Expected
from tests.support import nesting
from tests.support.http_client import TERMINAL, Json, event_of, text_of
from tests.support.upstream import UpstreamCall

CONCURRENCY = 16
ATTEMPTS = 3
# The fields of a response that a finding shows.
SHOWN_FIELDS = ("id", "status", "created_at", "completed_at", "model", "outlive")
USAGE = (
    "SELECT response, status, input_tokens - estimated_input AS given, output_tokens - estimated_output AS written "
    "FROM outlive.usage"
)
LEASES = "SELECT r.id FROM outlive.leases l JOIN outlive.responses r ON r.key = l.response"


class Audit:
    """Its results are `counts` and `findings`; the journals of responses with findings are written to `folder`."""

    def __init__(
        self,
        cluster: ChaosCluster,
        client: ClusterClient,
        answers: dict[str, Expected],
        turns: list[Turn],
        folder: Path,
        calls: Sequence[UpstreamCall] = (),
    ) -> None:
        self.counts = Counts()
        self.findings: list[str] = []
        self._cluster = cluster
        self._client = client
        self._answers = answers
        self._turns = {turn.name: turn for turn in turns}
        self._folder = folder
        self._calls = calls
        self._bodies: dict[str, Json] = {}
        self._order: list[str] = []  # response ids in order of admission

    async def run(self, after: int = 0) -> None:
        """Audit all responses with a greater key."""
        for turn in self._turns.values():
            if not turn.ended:
                self._find("stuck", turn.response_id, f"{turn.name} ({turn.kind}) was never answered to its end")
        rows = await self._cluster.sql("SELECT id, status FROM outlive.responses WHERE key > $1 ORDER BY key", after)
        self._order = [row["id"] for row in rows]
        slots = asyncio.Semaphore(CONCURRENCY)

        async def check(response_id: str) -> None:
            async with slots:
                await self._check_response(response_id)

        await asyncio.gather(*(check(response_id) for response_id in self._order))
        await self._check_turns()
        await self._check_usage()
        await self._check_leftovers()
        for trace in self._cluster.tracebacks:
            self._find("wrong", None, f"a traceback in the log of {trace}")

    # -- one response

    async def _check_response(self, response_id: str) -> None:
        answer = await self._client.request("GET", f"/responses/{response_id}?wait=3")
        body = answer.body
        self._bodies[response_id] = body
        if answer.status != 200 or f"response.{body['status']}" not in TERMINAL:
            self._find("stuck", response_id, f"is {body.get('status')} ({answer.status})")
            return
        self.check(response_id, body, await self._client.replay(response_id))

    def check(self, response_id: str, body: Json, frames: list[bytes]) -> None:
        """Check an ended response against its journal."""
        findings, turn = len(self.findings), self._turns.get((body.get("metadata") or {}).get("turn", ""))
        events = [event_of(frame) for frame in frames]
        self._check_numbers(response_id, events)
        self._check_grammar(response_id, events, body)
        if turn is None:
            self._find("wrong", response_id, "belongs to no turn of any user")
        else:
            self._check_words(response_id, body, turn)
            if turn.response_id == response_id:
                self._check_seen(response_id, frames, turn)
        self._count(body, frames)
        if len(self.findings) > findings:
            self._save(response_id, frames, turn)

    def _check_numbers(self, response_id: str, events: list[Json]) -> None:
        numbers = [event["sequence_number"] for event in events]
        self._compare(response_id, numbers, range(len(numbers)), "the journal")
        ends = [event["type"] for event in events if event["type"] in TERMINAL]
        if len(ends) != 1 or events[-1]["type"] not in TERMINAL:
            self._find("ends", response_id, f"has the terminal events {ends}, and last {events[-1]['type']}")

    def _check_grammar(self, response_id: str, events: list[Json], body: Json) -> None:
        try:
            nesting.check(events)
            assert events[-1]["response"] == body, "the terminal event carries another object than GET"
            deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
            assert "".join(deltas) == text_of(body), "the deltas do not add up to the text"
        except (AssertionError, ValueError) as broken:
            self._find("wrong", response_id, str(broken))

    def _check_words(self, response_id: str, body: Json, turn: Turn) -> None:
        """Check that the answer is the model's, or a start of it where there is a reason for that."""
        expected, text = self._answers[turn.model], text_of(body)
        outlive = body.get("outlive") or {}
        attempts, resumed_at = outlive.get("attempts", 1), Counter(outlive.get("resumed_at") or ())
        # Where the upstream can, a text is continued for as long as each resumption adds to it.
        repeats = max(resumed_at.values(), default=0)
        continues = turn.model.startswith("can/") and not expected.arguments and repeats < ATTEMPTS
        allowed = {
            "completed": text == expected.text and arguments_of(body) == expected.arguments,
            "incomplete": expected.text.startswith(text) and body["incomplete_details"] is not None and not continues,
            "cancelled": expected.text.startswith(text) and turn.cancelled,
            "failed": text == "" and attempts >= ATTEMPTS,
        }
        if not allowed[body["status"]]:
            why = body.get("error") or body.get("incomplete_details")
            self._find("wrong", response_id, f"{turn.name} ({turn.model}): {body['status']} {attempts} {why} {text!r}")

    def _check_seen(self, response_id: str, frames: list[bytes], turn: Turn) -> None:
        """Check that no frame a user saw is missing or different, and that they saw each once and in order."""
        numbers = [event_of(frame)["sequence_number"] for frame in turn.frames]
        self._compare(response_id, numbers, range(len(numbers)), f"what {turn.name} saw")
        if lost := sum((Counter(turn.frames) - Counter(frames)).values()):
            self._find("lost", response_id, f"{lost} frames that {turn.name} saw", lost)
        if turn.frames != frames[: len(turn.frames)]:
            self._find("changed", response_id, f"{turn.name} saw other frames than a replay has")
        self.counts.seen += len(turn.frames)

    def _compare(self, response_id: str, numbers: list[int], expected: range, what: str) -> None:
        if numbers == list(expected):
            return
        repeats = len(numbers) - len(set(numbers))
        gaps = len(set(range(max(numbers) + 1)) - set(numbers))
        self._find("repeats", response_id, f"{what} has {repeats} repeats: {numbers}", repeats)
        self._find("gaps", response_id, f"{what} has {gaps} gaps: {numbers}", gaps)
        if not repeats and not gaps:
            self._find("wrong", response_id, f"{what} is out of order: {numbers}")

    def _count(self, body: Json, frames: list[bytes]) -> None:
        self.counts.responses += 1
        self.counts.events += len(frames)
        self.counts.statuses[body["status"]] += 1
        outlive = body.get("outlive") or {}
        self.counts.reattempted += outlive.get("attempts", 1) > 1
        self.counts.resumed_at += len(outlive.get("resumed_at") or ())

    # -- turns and conversations

    async def _check_turns(self) -> None:
        self.counts.turns = len(self._turns)
        by_turn: dict[str, list[str]] = defaultdict(list)
        by_conversation: dict[str, list[Json]] = defaultdict(list)
        for response_id in self._order:
            body = self._bodies[response_id]
            by_turn[(body.get("metadata") or {}).get("turn", "")].append(response_id)
            if (conversation := (body.get("conversation") or {}).get("id")) and body["status"] != "failed":
                by_conversation[conversation].append(body)
        for name, ids in by_turn.items():
            lasting = [each for each in ids if self._bodies[each]["status"] != "failed"]
            if len(lasting) > 1:
                self._find("doubled", lasting[1], f"{name} was answered by {lasting}{self._describe(name, ids)}")
        for conversation, bodies in by_conversation.items():
            await self._check_conversation(conversation, bodies)

    def _describe(self, name: str, ids: list[str]) -> str:
        """Describe one turn: the tries of its user, and its responses."""
        turn = self._turns.get(name)
        tries = turn.tries if turn is not None else []
        bodies = [{key: self._bodies[each].get(key) for key in SHOWN_FIELDS} for each in ids]
        return "".join(f"\n    {line}" for line in [turn and turn.kind, *tries, *bodies])

    async def _check_conversation(self, conversation: str, bodies: list[Json]) -> None:
        """Check that it contains exactly the turns of its responses, in their order, and is unlocked."""
        self.check_items(conversation, await self._read_items(conversation), bodies)
        # Adding an item takes the lock and releases it again, which is only possible while no run holds it.
        note = {"type": "message", "role": "user", "content": "unlocked?"}
        answer = await self._client.request("POST", f"/conversations/{conversation}/items", {"items": [note]})
        if answer.status != 200:
            self._find("locked", None, f"{conversation}: {answer.body}")

    def check_items(self, conversation: str, items: list[Json], bodies: list[Json]) -> None:
        expected = [each for body in bodies for each in (turn_of(body), *map(id_of, filter(is_kept, body["output"])))]
        found = [text_of_item(item) if item.get("role") == "user" else item["id"] for item in items]
        if repeated := [each for each, times in Counter(found).items() if times > 1]:
            self._find("doubled", None, f"{conversation} holds {repeated} twice", len(repeated))
        elif found != expected:
            self._find("wrong", None, f"{conversation} holds {found} instead of {expected}")

    async def _read_items(self, conversation: str) -> list[Json]:
        items: list[Json] = []
        query = "order=asc&limit=100"
        while True:
            page = (await self._client.request("GET", f"/conversations/{conversation}/items?{query}")).body
            items += page["data"]
            if not page["has_more"]:
                return items
            query = f"order=asc&limit=100&after={page['last_id']}"

    # -- usage

    async def _check_usage(self) -> None:
        """Check that each response has one record, and that what is not estimated in it is what the upstream reported:
        all of it for a turn that was asked once to the end, and never more for any turn."""
        reported: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for call in self._calls:
            if call.reported is not None:
                asked = next(message for message in reversed(call.messages) if message["role"] == "user")
                counts = call.reported["prompt_tokens"], call.reported["completion_tokens"]
                # A question that was cancelled before its answer stands in the same message, before this one.
                reported[re.findall(r"question ([\d.-]+)", str(asked["content"]))[-1]].append(counts)
        rows = await self._cluster.sql(USAGE)
        records = Counter(row["response"] for row in rows)
        for response_id in self._order:
            if records[response_id] != 1:
                self._find("wrong", response_id, f"has {records[response_id]} records of its usage")
        used: dict[str, list[tuple[int, int]]] = defaultdict(list)
        whole = set()
        for row in rows:
            if (body := self._bodies.get(row["response"])) is not None:
                name = body["metadata"]["turn"]
                used[name].append((row["given"], row["written"]))
                whole |= {name} if row["status"] == "completed" else set()
        for name, spent in used.items():
            self.check_usage(name, spent, reported[name], whole=name in whole)

    def check_usage(self, name: str, used: list[tuple[int, int]], reported: list[tuple[int, int]], whole: bool) -> None:
        """Check the usage of one turn. `whole`: a response to it was completed."""
        (given, written), (most_given, most_written) = map(_add_up, (used, reported))
        if given > most_given or written > most_written:
            self._find("wrong", None, f"{name} used {used}, and the upstream reported only {reported}")
        elif whole and len(reported) == 1 and (given, written) != (most_given, most_written):
            self._find("wrong", None, f"{name} used {used}, and the upstream reported {reported}")

    async def _check_leftovers(self) -> None:
        """Check in the database that no lease and no lock is left."""
        for row in await self._cluster.sql(LEASES):
            self._find("stuck", row["id"], "still has a lease")
        for row in await self._cluster.sql("SELECT id FROM outlive.conversations WHERE running IS NOT NULL"):
            self._find("locked", None, row["id"])

    # -- findings

    def _find(self, violation: str, response_id: str | None, what: str, times: int = 1) -> None:
        if times:
            setattr(self.counts, violation, getattr(self.counts, violation) + times)
            self.findings.append(f"{violation}: {response_id or ''} {what}")

    def _save(self, response_id: str, frames: list[bytes], turn: Turn | None) -> None:
        """Write the journal, and the frames that the user saw, for finding the cause."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{response_id}.journal").write_bytes(b"".join(frames))
        (self._folder / f"{response_id}.seen").write_bytes(b"".join(turn.frames) if turn is not None else b"")


def _add_up(counts: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(given for given, _ in counts), sum(written for _, written in counts)


def id_of(item: Json) -> str:
    return str(item["id"])


def is_kept(item: Json) -> bool:
    """Return False for an unfinished call: it is left out of the conversation."""
    return item["type"] != "function_call" or item["status"] == "completed"


def turn_of(body: Json) -> str:
    return f"question {body['metadata']['turn']}"


def text_of_item(item: Json) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def arguments_of(body: Json) -> str:
    return "".join(item["arguments"] for item in body["output"] if item["type"] == "function_call")
