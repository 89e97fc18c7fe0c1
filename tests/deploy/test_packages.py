"""The sdist and the wheel: their files, and what they are in an environment that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from outlive import __version__
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TIMEOUT = 110

# pytest's own search path must not reach the processes that are tried.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT
    )


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages, made of a copy of the source: the wheel from the sdist."""
    place = tmp_path_factory.mktemp("packages")
    shutil.copytree(SOURCE, place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / file, place)
    built = run(sys.executable, "-m", "build", "--no-isolation", cwd=place)
    assert built.returncode == 0, built.stdout + built.stderr
    return place / "dist"


@pytest.fixture
def wheel(packages: Path) -> Path:
    return packages / f"outlive-{__version__}-py3-none-any.whl"


def test_the_wheel_holds_every_file_of_the_source_and_no_other(wheel: Path) -> None:
    inside = {file for file in SOURCE.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    source = {str(file.relative_to(SOURCE)) for file in inside if "egg-info" not in str(file)}
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = Parser().parsestr(archive.read(f"outlive-{__version__}.dist-info/METADATA").decode())
    assert files == source
    assert {Path(name).suffix for name in files} >= {".py", ".sql", ".typed"}
    assert metadata["Version"] == __version__ and metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert str(metadata.get_payload()).startswith("# Outlive\n")
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


def test_the_sdist_holds_the_source_and_what_builds_it(packages: Path) -> None:
    with tarfile.open(packages / f"outlive-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names if name}
    wanted = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "src"}
    assert top - wanted <= {"MANIFEST.in", "PKG-INFO", "setup.cfg"} and wanted <= top
    sql = {str(file.relative_to(ROOT)) for file in SOURCE.rglob("*.sql")}
    assert sql and sql <= names


class EmptyEnvironment:
    """A virtual environment that pip installs into, with the tested versions of whatever the packages ask for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"

    def install(self, *words: str) -> subprocess.CompletedProcess[str]:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        return run(*pip, "install", "--no-input", "--constraint", ROOT / "constraints.txt", *words, cwd=self.folder)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return run(*words, cwd=self.folder)

    def installed(self) -> set[str]:
        found = self.run(sys.executable, "-m", "pip", "--python", self.python, "list", "--format", "freeze")
        return {re.split("[=@ ]", line)[0].lower() for line in found.stdout.splitlines()}


def test_an_empty_environment_serves_after_the_install_and_has_the_client_side_with_its_extra(
    tmp_path: Path, wheel: Path, upstream: FakeUpstream
) -> None:
    empty = EmptyEnvironment(tmp_path / "environment")
    if empty.install("--dry-run", "msgspec").returncode != 0:
        pytest.skip("pip cannot reach a package index")
    installed = empty.install(str(wheel))
    assert installed.returncode == 0, installed.stderr

    assert empty.run(empty.folder / "bin" / "outlive", "--version").stdout.strip() == f"outlive {__version__}"
    environment = {"PYTHONPATH": ""}
    server = OutliveServer(tmp_path / "server", upstream.url, env=environment, python=str(empty.python))
    with server:
        model = upstream.model(say("out of ", "the wheel"))
        assert server.client.stream(model).read_all().complete
        assert server.client.get("/metrics").status == 200
    assert not {"openai", "asyncpg", "mcp", "xllamacpp"} & empty.installed()
    for module in ("outlive.client", "outlive.agents"):
        refused = empty.run(empty.python, "-c", f"import {module}")
        assert "pip install 'outlive[agents]'" in refused.stderr

    installed = empty.install(f"{wheel}[agents]")
    assert installed.returncode == 0, installed.stderr
    imported = empty.run(empty.python, "-W", "error", "-c", "import outlive.client, outlive.agents")
    assert imported.returncode == 0, imported.stderr
