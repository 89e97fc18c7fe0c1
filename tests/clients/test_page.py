"""The page about clients is what `make clients` made of the programs and versions that are here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clients.page import FEATURES, Result, Row, render, rewrite
from clients.run import PROGRAMS, read_report
from tests.clients.test_programs import CLIENTS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "clients.md").read_text()
ENVIRONMENTS = ROOT / "clients" / "environments"


def sections() -> dict[str, str]:
    return {part.partition("\n")[0]: part for part in re.split(r"^### ", PAGE, flags=re.M)[1:]}


def test_every_program_has_a_section_on_the_page() -> None:
    assert len(sections()) == len(PROGRAMS)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_check_of_an_installed_client_is_on_the_page(client) -> None:
    section = sections()[client.name]
    assert [check.sentence for check in client.checks if check.sentence not in section] == []
    assert [why for why in client.lacks.values() if why not in section] == []


def test_the_versions_on_the_page_are_pinned() -> None:
    node = json.loads((ROOT / "clients" / "node" / "package.json").read_text())["dependencies"]
    pins = {f"{package} {version}" for package, version in node.items()}
    for file in ENVIRONMENTS.glob("*.txt"):
        pins |= {line.replace("==", " ") for line in file.read_text().splitlines()}
    for section in sections().values():
        tried = re.search(r"^Tested: (.*)\.$", section, re.M)
        assert tried is not None
        versions = {f"{package} {version}" for package, version in re.findall(r"`(.+?)` ([\w.]+?)(?:,|$)", tried[1])}
        assert versions and versions <= pins, versions - pins


def test_a_cell_is_yes_only_if_every_check_passed() -> None:
    row = Row("one", {"one": "1.0"}, {"cancel": "has no call for it"})
    row.results = [Result("plain", "a"), Result("tools", "b"), Result("tools", "c", "Traceback")]
    assert [row.cell(feature) for feature in ("plain", "tools", "cancel", "images")] == ["yes", "**no**", "-", "**no**"]
    assert row.unreported == [feature for feature in FEATURES if feature not in ("plain", "tools", "cancel")]
    assert "c: **fails**" in render([row])


def test_rewriting_the_page_with_the_same_rows_changes_nothing() -> None:
    rows = [Row("one", {"one": "1.0"}, {}, [Result("plain", "a")])]
    once = rewrite(PAGE, rows)
    assert rewrite(once, rows) == once
    assert once.startswith(PAGE.partition("<!--")[0])


def test_a_report_is_read_among_other_output() -> None:
    said = 'noise\n{"client": "one", "packages": {"one": "1"}, "lacks": {}}\n{"a": 1}\n'
    said += '{"client": "one", "feature": "plain", "sentence": "a", "error": ""}\n'
    row = read_report("name", said)
    assert (row.client, row.packages, row.results) == ("one", {"one": "1"}, [Result("plain", "a")])
