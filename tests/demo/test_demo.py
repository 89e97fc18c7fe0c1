"""The demo as `make demo` runs it, with the embedded model and a real kill -9."""

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from demo.__main__ import conclude
from demo.stage import Stage

REPOSITORY = Path(__file__).parents[2]


def test_every_claim_of_the_demo_holds():
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--fast"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "claims held" in run.stdout


def test_a_claim_that_does_not_hold_fails_the_demo():
    stage = Stage(Console(quiet=True), pauses=False)
    stage.claim("water is wet", True)
    stage.claim("the moon is cheese", False)
    assert conclude(stage, 1.0) == 1
