"""Fixtures of the command tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outlive.cli import app
from tests.cli.servers import FakeOutlive
from tests.support.fake_server import serving

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command in an empty folder, without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("OUTLIVE_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)

    def invoke(*words: str, **environ: str) -> Result:
        return CliRunner().invoke(app, list(words), env=environ)

    return invoke


@pytest.fixture
def fake() -> FakeOutlive:
    return FakeOutlive()


@pytest.fixture
def server(fake: FakeOutlive) -> Iterator[str]:
    with serving(fake) as url:
        yield url
