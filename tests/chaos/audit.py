"""The audit after a round: every response there is, every turn of every conversation, and every frame that was seen."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from pathlib import Path

from tests.chaos.fleet import Fleet
from tests.chaos.record import Counts, Turn
from tests.chaos.tales import Tale
from tests.chaos.wire import Wire
from tests.crash.client import text_of
from tests.support import nesting
from tests.support.upstream import Json

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
AT_ONCE = 16
ATTEMPTS = 3
# What a finding tells of a response.
TOLD = ("id", "status", "created_at", "completed_at", "model", "outlive")
LEASES = "SELECT r.id FROM outlive.leases l JOIN outlive.responses r ON r.key = l.response"


class Audit:
    """`counts` and `findings` say what came out; what is needed to look closer lies in `folder`."""

    def __init__(self, fleet: Fleet, wire: Wire, tales: dict[str, Tale], turns: list[Turn], folder: Path) -> None:
        self.counts = Counts()
        self.findings: list[str] = []
        self._fleet = fleet
        self._wire = wire
        self._tales = tales
        self._turns = {turn.name: turn for turn in turns}
        self._folder = folder
        self._bodies: dict[str, Json] = {}
        self._order: list[str] = []  # of admission

    async def make(self, after: int = 0) -> None:
        """Of all responses whose key is greater."""
        for turn in self._turns.values():
            if not turn.over:
                self._find("stuck", turn.response_id, f"{turn.name} ({turn.kind}) was never answered to its end")
        rows = await self._fleet.sql("SELECT id, status FROM outlive.responses WHERE key > $1 ORDER BY key", after)
        self._order = [row["id"] for row in rows]
        room = asyncio.Semaphore(AT_ONCE)

        async def look(response_id: str) -> None:
            async with room:
                await self._check_response(response_id)

        await asyncio.gather(*(look(response_id) for response_id in self._order))
        await self._check_turns()
        await self._check_leftovers()
        for trace in self._fleet.tracebacks:
            self._find("wrong", None, f"a traceback in the log of {trace}")

    # -- one response

    async def _check_response(self, response_id: str) -> None:
        answer = await self._wire.ask("GET", f"/responses/{response_id}?wait=3")
        body = answer.body
        self._bodies[response_id] = body
        if answer.status != 200 or f"response.{body['status']}" not in TERMINAL:
            self._find("stuck", response_id, f"is {body.get('status')} ({answer.status})")
            return
        self.check(response_id, body, await self._wire.replay(response_id))

    def check(self, response_id: str, body: Json, frames: list[bytes]) -> None:
        """Whether a response that ended is whole, given its journal."""
        faults, turn = len(self.findings), self._turns.get((body.get("metadata") or {}).get("turn", ""))
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
        if len(self.findings) > faults:
            self._keep(response_id, frames, turn)

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
        """The answer is what the model told, or a beginning of it; and it ended so for a reason."""
        tale, told = self._tales[turn.model], text_of(body)
        outlive = body.get("outlive") or {}
        attempts, resumed_at = outlive.get("attempts", 1), Counter(outlive.get("resumed_at") or ())
        # A text is continued for as long as each joint brings something new, where the upstream can.
        lasts = turn.model.startswith("can/") and not tale.arguments and max(resumed_at.values(), default=0) < ATTEMPTS
        allowed = {
            "completed": told == tale.text and arguments_of(body) == tale.arguments,
            "incomplete": tale.text.startswith(told) and body["incomplete_details"] is not None and not lasts,
            "cancelled": tale.text.startswith(told) and turn.cancelled,
            "failed": told == "" and attempts >= ATTEMPTS,
        }
        if not allowed[body["status"]]:
            why = body.get("error") or body.get("incomplete_details")
            self._find("wrong", response_id, f"{turn.name} ({turn.model}): {body['status']} {attempts} {why} {told!r}")

    def _check_seen(self, response_id: str, frames: list[bytes], turn: Turn) -> None:
        """Nothing that a user saw is missing or different, and they saw it once and in order."""
        numbers = [event_of(frame)["sequence_number"] for frame in turn.frames]
        self._compare(response_id, numbers, range(len(numbers)), f"what {turn.name} saw")
        there = Counter(frames)
        if lost := sum((Counter(turn.frames) - there).values()):
            self._find("lost", response_id, f"{lost} frames that {turn.name} saw", lost)
        if turn.frames != frames[: len(turn.frames)]:
            self._find("changed", response_id, f"{turn.name} saw something else than a replay shows")
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
        self.counts.several += outlive.get("attempts", 1) > 1
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
                self._find("doubled", lasting[1], f"{name} was answered by {lasting}{self._tell(name, ids)}")
        for conversation, bodies in by_conversation.items():
            await self._check_conversation(conversation, bodies)

    def _tell(self, name: str, ids: list[str]) -> str:
        """Of one turn: what its user did, and what there is."""
        turn = self._turns.get(name)
        tries = turn.tries if turn is not None else []
        bodies = [{key: self._bodies[each].get(key) for key in TOLD} for each in ids]
        return "".join(f"\n    {line}" for line in [turn and turn.kind, *tries, *bodies])

    async def _check_conversation(self, conversation: str, bodies: list[Json]) -> None:
        """It holds exactly the turns of its responses, in their order, and is unlocked."""
        self.check_items(conversation, await self._read_items(conversation), bodies)
        # Taking and giving the lock again is the proof that nobody holds it.
        note = {"type": "message", "role": "user", "content": "unlocked?"}
        answer = await self._wire.ask("POST", f"/conversations/{conversation}/items", {"items": [note]})
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
            page = (await self._wire.ask("GET", f"/conversations/{conversation}/items?{query}")).body
            items += page["data"]
            if not page["has_more"]:
                return items
            query = f"order=asc&limit=100&after={page['last_id']}"

    async def _check_leftovers(self) -> None:
        """The database itself: no lease and no lock is left."""
        for row in await self._fleet.sql(LEASES):
            self._find("stuck", row["id"], "still has a lease")
        for row in await self._fleet.sql("SELECT id FROM outlive.conversations WHERE running IS NOT NULL"):
            self._find("locked", None, row["id"])

    # -- what is found

    def _find(self, fault: str, response_id: str | None, what: str, times: int = 1) -> None:
        if times:
            setattr(self.counts, fault, getattr(self.counts, fault) + times)
            self.findings.append(f"{fault}: {response_id or ''} {what}")

    def _keep(self, response_id: str, frames: list[bytes], turn: Turn | None) -> None:
        """What one needs to find the cause: the journal, and what the user saw of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{response_id}.journal").write_bytes(b"".join(frames))
        (self._folder / f"{response_id}.seen").write_bytes(b"".join(turn.frames) if turn is not None else b"")


def event_of(frame: bytes) -> Json:
    event: Json = json.loads(frame[frame.index(b"\ndata: ") + 7 :])
    return event


def id_of(item: Json) -> str:
    return str(item["id"])


def is_kept(item: Json) -> bool:
    """Calls that were not finished are left out of a conversation."""
    return item["type"] != "function_call" or item["status"] == "completed"


def turn_of(body: Json) -> str:
    return f"question {body['metadata']['turn']}"


def text_of_item(item: Json) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def arguments_of(body: Json) -> str:
    return "".join(item["arguments"] for item in body["output"] if item["type"] == "function_call")
