"""`outlive conversations` against a fake server on a socket."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.cli.servers import FakeOutlive


def test_list_prints_the_metadata_of_conversations(run: Run, server: str) -> None:
    line = run("conversations", "list", "--server", server).stdout.splitlines()[1]
    assert line.startswith("conv_1\t")
    assert line.endswith("\ttopic=otters")
    assert json.loads(run("conversations", "list", "--json", "--server", server).stdout)["object"] == "list"


def test_show_prints_the_newest_items_and_that_there_are_more(run: Run, server: str) -> None:
    shown = run("conversations", "show", "conv_1", "--limit", "3", "--server", server).stdout.splitlines()
    assert shown[0] == "id           conv_1"
    assert shown[2].startswith("shown        the newest 3 items")
    assert [line[:15] for line in shown[3:]] == ["assistant: Once"] * 3


def test_show_reads_as_many_pages_as_it_takes(run: Run, server: str, fake: FakeOutlive) -> None:
    result = run("conversations", "show", "conv_1", "--limit", "220", "--json", "--server", server)
    shown = json.loads(result.stdout)
    assert [item["id"] for item in shown["items"]] == [f"msg_{n}" for n in range(30, 250)]
    assert (shown["id"], shown["has_more"]) == ("conv_1", True)
    assert [query.get("limit") for _, _, query in fake.asked[1:]] == [["100"], ["100"], ["20"]]


def test_delete_prints_the_deleted_conversation(run: Run, server: str) -> None:
    assert run("conversations", "delete", "conv_1", "--server", server).stdout == "conv_1 is deleted\n"
    assert json.loads(run("conversations", "delete", "conv_1", "--json", "--server", server).stdout)["deleted"] is True


def test_an_unknown_conversation_prints_one_sentence(run: Run, server: str) -> None:
    result = run("conversations", "show", "conv_none", "--server", server)
    assert (result.exit_code, result.stderr) == (1, "outlive: There is no conv_none.\n")
