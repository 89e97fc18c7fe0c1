"""`outlive responses` against a fake server on a socket."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.cli.servers import FakeOutlive
from tests.support.fake_server import serving


def test_list_prints_whole_lines_in_a_pipe(run: Run, server: str) -> None:
    result = run("responses", "list", "--server", server)
    assert result.exit_code == 0
    head, first, second = result.stdout.splitlines()
    assert head.split("\t") == ["ID", "STATUS", "MODEL", "CREATED", "TOKENS", "CONVERSATION", "WAITING"]
    assert first.split("\t")[:3] == ["resp_1", "completed", "demo"]
    assert first.split("\t")[4:] == ["3 in, 5 out", "conv_1", ""]
    assert second.split("\t")[1] == "failed"


def test_a_queued_response_is_shown_with_its_place_and_time(run: Run, fake: FakeOutlive, server: str) -> None:
    fake.waiting = [{"id": "resp_3", "status": "queued", "outlive": {"queue": {"place": 2, "seconds": 7}}}]
    last = run("responses", "list", "--server", server).stdout.splitlines()[-1]
    assert last.split("\t")[-1] == "no. 2, for 7 s"
    assert "waiting      no. 2, for 7 s" in run("responses", "show", "resp_3", "--server", server).stdout


def test_list_sends_its_filters(run: Run, server: str, fake: FakeOutlive) -> None:
    words = ("--status", "queued", "--status", "in_progress", "--conversation", "conv_1", "--after", "resp_9")
    result = run("responses", "list", *words, "--limit", "7", "--order", "asc", "--json", "--server", server + "/v1")
    assert [one["id"] for one in json.loads(result.stdout)["data"]] == ["resp_1", "resp_2"]
    assert fake.asked[0][2] == {
        "status": ["queued", "in_progress"],
        "conversation": ["conv_1"],
        "after": ["resp_9"],
        "limit": ["7"],
        "order": ["asc"],
    }


def test_show_prints_fields_and_items_without_escape_codes(run: Run, server: str) -> None:
    result = run("responses", "show", "resp_1", "--server", server)
    assert result.exit_code == 0
    assert "status       completed" in result.stdout
    assert "assistant: Once upon[31m a time" in result.stdout
    assert "\x1b" not in result.stdout


def test_show_prints_the_object_as_json(run: Run, server: str) -> None:
    shown = json.loads(run("responses", "show", "resp_1", "--json", "--server", server).stdout)
    assert (shown["id"], shown["output"][0]["id"]) == ("resp_1", "msg_1")


def test_cancel_prints_the_new_status(run: Run, server: str, fake: FakeOutlive) -> None:
    assert run("responses", "cancel", "resp_1", "--server", server).stdout == "resp_1 is cancelled\n"
    assert fake.asked[-1][:2] == ("POST", "/v1/responses/resp_1/cancel")
    assert (
        json.loads(run("responses", "cancel", "resp_1", "--json", "--server", server).stdout)["status"] == "cancelled"
    )


def test_delete_accepts_an_answer_without_a_body(run: Run, server: str) -> None:
    assert run("responses", "delete", "resp_1", "--server", server).stdout == "resp_1 is deleted\n"
    answer = json.loads(run("responses", "delete", "resp_1", "--json", "--server", server).stdout)
    assert answer == {"id": "resp_1", "object": "response", "deleted": True}


def test_a_refusal_prints_the_servers_message_and_exits_with_1(run: Run, server: str) -> None:
    result = run("responses", "show", "resp_none", "--server", server)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "outlive: There is no resp_none.\n")


def test_an_id_cannot_leave_its_place_in_the_path(run: Run, server: str, fake: FakeOutlive) -> None:
    assert run("responses", "show", "../conversations", "--server", server).exit_code == 1
    assert fake.asked[-1][1] == "/v1/responses/..%2Fconversations"


def test_a_missing_server_prints_one_sentence(run: Run, server: str) -> None:
    result = run("responses", "list", OUTLIVE_SERVER="http://127.0.0.1:9")
    assert result.exit_code == 1
    assert result.stderr == (
        "outlive: No server answers at http://127.0.0.1:9; start one with `outlive serve`, or give --server URL.\n"
    )


def test_a_wrong_server_address_exits_with_2(run: Run) -> None:
    result = run("responses", "list", "--server", "localhost")
    assert (result.exit_code, result.stderr) == (
        2,
        "outlive: --server must be a URL such as http://localhost:8000/v1.\n",
    )


def test_a_key_from_flag_or_variable_is_sent(run: Run) -> None:
    with serving(FakeOutlive(key="s3cret")) as url:
        assert run("responses", "list", "--server", url, "--key", "s3cret").exit_code == 0
        assert run("responses", "list", "--server", url, OUTLIVE_KEY="s3cret").exit_code == 0
        assert run("responses", "list", "--server", url, "--key", "env:MINE", MINE="s3cret").exit_code == 0
        refused = run("responses", "list", "--server", url, "--key", "other")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "outlive: The server needs a valid key: give --key KEY, or set OUTLIVE_KEY.\n",
    )
