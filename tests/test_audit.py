"""`make audit`: packages that are not pinned, were withdrawn or have another hash, and changed files, are found."""

from __future__ import annotations

import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tools.audit import audit

HASH = "ab" * 32


def package(name: str = "Some_Package", *, given: str | None = HASH, yanked: bool = False) -> dict[str, Any]:
    archive = {"hashes": {"sha256": given}} if given is not None else {}
    return {
        "metadata": {"name": name, "version": "1.0"},
        "download_info": {"url": "https://index.example/some_package-1.0.whl", "archive_info": archive},
        "is_yanked": yanked,
    }


PINS = audit.read_pins("# some==2.0\nsome-package==1.0\n")
HASHES = audit.read_hashes(f"# a comment\nsome-package==1.0 --hash=sha256:{HASH} --hash=sha256:{'cd' * 32}\n")


@pytest.mark.parametrize("given", [HASH, "cd" * 32, None])
def test_a_pinned_package_with_a_recorded_hash_or_none_is_accepted(given: str | None) -> None:
    assert audit.check_packages([package(given=given)], PINS, HASHES) == []


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (package(given="00" * 32), "some-package==1.0: the hash of some_package-1.0.whl is not in"),
        (package(yanked=True), "some-package==1.0 was withdrawn"),
        (package("other", given=None), "other==1.0 is not pinned"),
    ],
)
def test_a_package_that_is_not_what_was_recorded_is_a_fault(found: dict[str, Any], fault: str) -> None:
    (text,) = audit.check_packages([found], PINS, HASHES)
    assert text.startswith(fault)


def test_a_changed_and_a_missing_file_are_faults(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("changed")
    (tmp_path / "some-1.0.dist-info").mkdir()
    (tmp_path / "some-1.0.dist-info" / "METADATA").write_text("Name: some\nVersion: 1.0\n")
    digest = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    (tmp_path / "some-1.0.dist-info" / "RECORD").write_text(f"some.py,{digest},0\ngone.py,{digest},0\n")
    faults = audit.check_files(metadata.distributions(path=[str(tmp_path)]))
    assert faults == ["some: some.py was changed since it was installed", "some: gone.py is missing"]
    (tmp_path / "some.py").write_text("")
    assert audit.check_files(metadata.distributions(path=[str(tmp_path)])) == ["some: gone.py is missing"]


def test_every_package_of_a_server_has_a_hash_and_every_hash_is_of_a_pinned_version() -> None:
    recorded = audit.read_hashes(audit.HASHES.read_text())
    stale = set(recorded) - audit.read_pins(audit.CONSTRAINTS.read_text())
    assert not stale, "run make audit ARGS=--record"
    project = tomllib.loads((audit.ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("local", "mcp", "postgres")]
    for wanted in (*project["dependencies"], *chain.from_iterable(extras), audit.WEIGHTS):
        assert any(each.startswith(f"{wanted.partition('>')[0]}==") for each in recorded), wanted
