"""ARCHITECTURE.md is true: everything it refers to is defined where it says, and its state table is the code's."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from outlive.engine.delivery.live import TRANSITIONS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outlive"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PATHS = ("Create", "Resume", "Cancel, from any node", "A tool step", "Recovery", "Retention")

REFERENCES = sorted(
    set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+)\.([A-Za-z_][\w.]*)`", PAGE)) - {("tests/test_layout", "py")}
)
# Folders and modules that the page names without anything in them, such as `engine/run/` or `http/errors`.
PLACES = sorted(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*)`", PAGE)) - {"src/outlive", "tests/conformance"})


@cache
def parse(module: str) -> ast.Module:
    return ast.parse((SOURCE / f"{module}.py").read_text())


def find(module: str, name: str) -> ast.AST | None:
    """Return the definition of a dotted name in a module, or None."""
    node: ast.AST | None = parse(module)
    for part in name.split("."):
        body: list[ast.stmt] = getattr(node, "body", [])
        node = next((each for each in body if getattr(each, "name", None) == part), None)
        if node is None:
            return None
    return node


@pytest.mark.parametrize(
    ("module", "name"), [pair for pair in REFERENCES if pair[1] not in ("py", "sql")], ids=lambda part: part
)
def test_every_reference_is_defined_where_the_page_says(module: str, name: str) -> None:
    assert (SOURCE / f"{module}.py").exists(), module
    assert find(module, name) is not None, f"{module} defines no {name}"


@pytest.mark.parametrize("place", PLACES)
def test_every_folder_and_module_is_where_the_page_says(place: str) -> None:
    candidates = [SOURCE / place.rstrip("/"), *(folder / place.rstrip("/") for folder in SOURCE.iterdir())]
    if place.endswith("/"):
        assert any(path.is_dir() for path in candidates), place
    else:
        assert any(path.with_suffix(".py").exists() for path in candidates), place


def test_every_path_is_a_list_of_hops_with_references() -> None:
    for path in PATHS:
        section = re.search(rf"^### {re.escape(path)}$(.*?)^##", PAGE, re.M | re.S)
        assert section is not None, path
        hops = re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z|^$)", section[1], re.M | re.S)
        assert len(hops) >= 3, path
        for hop in hops:
            assert re.search(r"`[a-z_/]+\.\w", hop), f"{path}: a hop names no code: {hop}"


def test_the_state_table_of_the_page_is_the_one_of_the_code() -> None:
    rows = re.findall(r"^\| ([A-Z]+) \| (\w+) \| ([A-Z]+) \| .+ \|$", PAGE, re.M)
    table = {
        (state.name, event, following.name)
        for state, events in TRANSITIONS.items()
        for event, following in events.items()
    }
    assert set(rows) == table
    assert len(rows) == len(table)
