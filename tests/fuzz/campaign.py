"""Fuzzing of a live server: by its own OpenAPI document, and by strategies for bodies, items and frames."""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from schemathesis.engine import events as engine_events
from schemathesis.engine import from_schema

from outlive.core.grammar import TERMINAL_EVENTS
from tests.fuzz import strategies
from tests.support.http_client import HttpClient, come_from_elsewhere
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream
from tests.wire import events
from tests.wire.websocket import check_error, open_websocket

# Seconds. Nothing here takes long: a request without an answer by then hangs.
HANGS = 20.0
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "use_after_free",
    "unsupported_method",
    "allow_header_conformance",
)


class Tally:
    """Counts of the cases that were tried, by the status of the answer, and the failures that were found."""

    def __init__(self) -> None:
        self.statuses: Counter[object] = Counter()
        self.found: list[str] = []

    @property
    def tried(self) -> int:
        return self.statuses.total()

    def __str__(self) -> str:
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items(), key=str))
        return f"{self.tried} cases tried ({answers}), {len(self.found)} found wrong"


@contextmanager
def start_server(folder: Path, database_url: str | None = None) -> Iterator[OutliveServer]:
    """Start a server whose every model answers at once."""
    with FakeUpstream() as upstream, OutliveServer(folder, upstream.url, database_url=database_url) as server:
        yield server
    assert "Traceback" not in server.log, server.log


# -- by the document


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    case.headers.update(come_from_elsewhere())


def run_document(server: OutliveServer, seconds: int, *phases: str, number: int | None = None) -> Tally:
    """Run schemathesis on /openapi.json, with ids of things that exist among those it tries."""
    tally = Tally()
    config = schemathesis.Config.from_dict(_config(seconds, phases, _plant(server), number))
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    for event in from_schema(schema).execute():
        if isinstance(event, engine_events.ScenarioFinished):
            for interaction in event.recorder.interactions.values():
                tally.statuses[interaction.response.status_code if interaction.response is not None else "hang"] += 1
            for checks in event.recorder.checks.values():
                tally.found += [
                    f"{event.label}: {check.failure_info.failure}\n{check.failure_info.code_sample}"
                    for check in checks
                    if check.failure_info is not None
                ]
        elif isinstance(event, engine_events.NonFatalError):
            tally.found.append(f"{event.label}: {event.info}")
        elif isinstance(event, engine_events.FatalError):
            raise event.exception
    return tally


def _config(seconds: int, phases: tuple[str, ...], ids: list[str], number: int | None) -> dict[str, Any]:
    return {
        **({"seed": number} if number is not None else {}),
        "max-time": seconds,
        "workers": 1,  # in several threads, Python 3.11 itself now and then fails to compile hypothesis' code
        "continue-on-failure": True,
        "request-timeout": HANGS,
        "suppress-health-check": ["all"],
        "cache": {"enabled": False},
        "generation": {"database": "none", "no-shrink": True},
        "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        "phases": {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")},
        "dictionaries": {"ids": {"values": ids}},
        "parameters": {
            name: {"dictionary": "ids", "probability": 0.5}
            for name in ("path.id", "path.item_id", "query.after", "query.conversation")
        },
    }


def _plant(server: OutliveServer) -> list[str]:
    """Create some responses, conversations and items, and return their ids."""
    with HttpClient(server.port) as http:
        conversations = [http.post("/v1/conversations", {"metadata": {"n": str(n)}}).json()["id"] for n in range(3)]
        made = [
            http.create(model="any", input=f"Hi {n}", **({"conversation": where} if where else {})).json()["id"]
            for n, where in enumerate([*conversations, None, None])
        ]
        items = http.get(f"/v1/conversations/{conversations[0]}/items").json()["data"]
    return [*conversations, *made, *(item["id"] for item in items)]


# -- by strategies


def run_bodies(server: OutliveServer, seconds: float, *, number: int = 1) -> Tally:
    """Send creates, counts, compactions and items: none may fail, hang, or break the rules of a stream."""
    with HttpClient(server.port) as http:
        conversation = http.post("/v1/conversations", {}).json()["id"]
    connection = HTTPConnection("127.0.0.1", server.port, timeout=HANGS)
    tally = Tally()

    def send(path: str, body: object) -> None:
        # Python's json writes half surrogates as escapes, which is how they come over the wire.
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read()
        tally.statuses[answer.status] += 1
        assert answer.status < 500, (path, body, raw)
        if answer.getheader("content-type", "").startswith("text/event-stream"):
            events.read_all(raw)
        elif answer.status != 200:
            assert set(json.loads(raw)["error"]) == {"message", "type", "param", "code"}

    asked = st.one_of(
        st.tuples(st.just("/v1/responses"), strategies.bodies),
        st.tuples(st.just("/v1/responses"), strategies.creates),
        st.tuples(st.just("/v1/responses/input_tokens"), strategies.bodies),
        st.tuples(st.just("/v1/responses/compact"), strategies.creates),
        st.tuples(
            st.just(f"/v1/conversations/{conversation}/items"),
            st.fixed_dictionaries({"items": st.lists(strategies.good_items | strategies.items, max_size=4)}),
        ),
    )
    _try(asked, lambda case: send(*case), tally, seconds, number)
    connection.close()
    return tally


def run_items(server: OutliveServer, seconds: float, *, number: int = 1) -> Tally:
    """Put items of any kind and content into new conversations: every one of them answers its next turn."""
    tally = Tally()
    with HttpClient(server.port) as http:

        def send(items: list[Any]) -> None:
            # Python's json writes half surrogates as escapes, which is how they come over the wire.
            made = http.post("/v1/conversations", {"items": items})
            tally.statuses[made.status] += 1
            assert made.status in (200, 400), (items, made.status)
            if made.status == 200:
                turn = {"model": "fuzz", "conversation": made.json()["id"], "input": "Hi"}
                for path in ("/v1/responses/input_tokens", "/v1/responses"):
                    answer = http.post(path, turn)
                    tally.statuses[answer.status] += 1
                    assert answer.status == 200, (path, items, answer)

        _try(st.lists(strategies.any_items, min_size=1, max_size=4), send, tally, seconds, number)
    return tally


def run_frames(server: OutliveServer, seconds: float, *, number: int = 1) -> Tally:
    """Send frames on one WebSocket: each is answered, and none closes the connection."""
    tally = Tally()
    with open_websocket(server.port) as socket:

        def send(frame: str | bytes) -> None:
            socket.connection.send(frame)
            while (answer := socket.frame())["type"] not in ("error", "response.steer.failed", *TERMINAL_EVENTS):
                pass
            tally.statuses[answer["type"]] += 1
            if answer["type"] == "error":
                assert check_error(answer)["status"] < 500, (frame, answer)

        _try(strategies.frames, send, tally, seconds, number)
    return tally


def _try(cases: st.SearchStrategy[Any], send: Callable[[Any], None], tally: Tally, seconds: float, number: int) -> None:
    """Try as many cases as there is time for; the first failure ends it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not tally.found:

        @seed(number)
        @settings(
            max_examples=100,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def check(case: Any) -> None:
            if time.monotonic() < until:
                send(case)

        try:
            with warnings.catch_warnings():
                # One of them warns that the strategies, written out, are long.
                warnings.simplefilter("ignore", HypothesisWarning)
                check()
        except Exception as error:  # any error of a case is a finding
            tally.found.append(f"{type(error).__name__}: {error}")
        number += 1
