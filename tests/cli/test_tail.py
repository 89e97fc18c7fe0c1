"""`outlive responses tail` over working and broken connections."""

from __future__ import annotations

import json

import pytest

from outlive.cli.client import ApiClient, ServerUnreachable
from outlive.cli.resources import follow
from tests.cli.conftest import Run
from tests.cli.servers import FakeOutlive, event, make_frames


def test_tail_prints_the_text_alone_in_a_pipe(run: Run, server: str) -> None:
    result = run("responses", "tail", "resp_1", "--server", server)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Once upon\n", "")


def test_tail_prints_every_event_as_a_line_of_json(run: Run, server: str) -> None:
    result = run("responses", "tail", "resp_1", "--json", "--server", server)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["sequence_number"] for one in events] == [0, 1, 2, 3, 4, 5, 6]
    assert events[-1]["type"] == "response.completed"


def test_tail_begins_after_a_given_event(run: Run, server: str, fake: FakeOutlive) -> None:
    assert run("responses", "tail", "resp_1", "--after", "3", "--server", server).stdout == "upon\n"
    assert fake.asked[0][2] == {"stream": ["true"], "starting_after": ["3"]}


def test_a_broken_connection_is_resumed_after_the_last_event(run: Run, server: str, fake: FakeOutlive) -> None:
    fake.cuts = [4, 0]
    result = run("responses", "tail", "resp_1", "--server", server)
    assert (result.exit_code, result.stdout) == (0, "Once upon\n")
    assert [query.get("starting_after") for _, _, query in fake.asked] == [None, ["3"], ["3"]]
    assert result.stderr.count("Going on after event 3 ...") == 1


def test_tail_waits_for_a_server_that_restarts(run: Run, server: str, fake: FakeOutlive) -> None:
    fake.refusals = [503]
    assert run("responses", "tail", "resp_1", "--server", server).stdout == "Once upon\n"


def test_tail_does_not_wait_for_an_unknown_response(run: Run, server: str) -> None:
    result = run("responses", "tail", "resp_none", "--server", server)
    assert (result.exit_code, result.stderr) == (1, "outlive: There is no resp_none.\n")


def test_follow_raises_after_its_timeout(server: str, fake: FakeOutlive) -> None:
    fake.cuts = [2] * 100
    events = follow(ApiClient(server), "resp_1", None, -1.0, lambda *_: None)
    with pytest.raises(ServerUnreachable):
        list(events)


def test_delays_grow_and_start_over_after_progress(server: str, fake: FakeOutlive) -> None:
    fake.cuts = [0, 0, 0, 2, 0]
    pauses: list[float] = []
    list(follow(ApiClient(server), "resp_1", None, 60.0, lambda *_: None, sleep=pauses.append))
    assert pauses == [0.1, 0.2, 0.4, 0.1, 0.2]


@pytest.mark.parametrize(
    ("status", "fields", "code", "notice"),
    [
        ("failed", {"error": {"code": "server_error", "message": "It broke."}}, 1, "failed · It broke. · 5 tokens\n"),
        ("cancelled", {"usage": None}, 1, "cancelled\n"),
        ("incomplete", {"incomplete_details": {"reason": "interrupted"}}, 0, "incomplete · interrupted · 5 tokens\n"),
    ],
)
def test_an_end_other_than_completed_is_printed(
    run: Run, server: str, fake: FakeOutlive, status: str, fields: dict[str, object], code: int, notice: str
) -> None:
    fake.frames = make_frames(status, **fields)
    result = run("responses", "tail", "resp_1", "--server", server)
    assert (result.exit_code, result.stdout, result.stderr) == (code, "Once upon\n", notice)
    assert run("responses", "tail", "resp_1", "--json", "--server", server).exit_code == code


def test_tool_calls_are_shown(run: Run, server: str, fake: FakeOutlive) -> None:
    call = {"type": "function_call", "name": "weather", "arguments": '{"in": "Oslo"}', "status": "completed"}
    fake.frames = [
        event(0, "response.output_item.done", item=call),
        event(1, "response.completed", response={"status": "completed"}),
    ]
    assert run("responses", "tail", "resp_1", "--server", server).stdout == 'calls: weather({"in": "Oslo"})\n'
