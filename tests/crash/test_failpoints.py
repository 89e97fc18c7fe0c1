"""Failpoints: the list of their names is complete, and a server does not start with any other name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive import failpoints

SOURCE = Path(failpoints.__file__).parent
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
    listed = {point for point in failpoints.POINTS if "-commit" not in point}
    assert set(first_texts(SOURCE, {"hit"})) == listed
    assert set(first_texts(SOURCE / "storage", WRITES)) == set(failpoints.OPERATIONS)


@pytest.mark.parametrize("value", ["after-comit", "after-commit-of-close:x", "after-commit:0", ":2"])
def test_a_server_refuses_to_start_with_an_unknown_failpoint(tmp_path: Path, value: str) -> None:
    words = [sys.executable, "-m", "outlive", "serve", "--port", "0", "--database", f"sqlite:///{tmp_path}/outlive.db"]
    environment = os.environ | {"OUTLIVE_KILL_AT": value}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        f"outlive: OUTLIVE_KILL_AT must be a failpoint, such as after-commit or after-commit:3, not {value!r}.\n",
    )
