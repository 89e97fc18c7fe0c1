"""Failpoints: the list of their names is complete, and no test uses any other name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlive
from tests.support.failpoints import OPERATIONS, POINTS, check_point

SOURCE = Path(outlive.__file__).parent
WRITES = {"write", "transact", "atomically", "write_staged", "_write", "_take_once"}


def first_texts(folder: Path, names: set[str]) -> Iterator[str]:
    """Yield the first argument of each call of a method with one of these names, where it is a literal text."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
                match node.args:
                    case [ast.Constant(value=str(text)), *_]:
                        yield text


def test_every_place_in_the_source_has_its_failpoint_in_the_list() -> None:
    listed = {point for point in POINTS if "-commit" not in point}
    assert set(first_texts(SOURCE, {"hit"})) == listed
    written = {*first_texts(SOURCE / "storage", WRITES), *first_texts(SOURCE / "ports", WRITES)}
    assert written == set(OPERATIONS)


@pytest.mark.parametrize("value", ["after-comit", "after-commit-of-close:x", "after-commit:0", ":2"])
def test_a_test_cannot_start_a_server_with_an_unknown_failpoint(value: str) -> None:
    with pytest.raises(AssertionError):
        check_point(value)
