"""The how-to guide docs/how-to/deploy.md: every command on it, in its order, in one shell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from outlive import __version__
from tests.deploy.machine import PROGRAMS, ROOT, Machine
from tests.deploy.reverse_proxies import PATH
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
SECONDS = 240


def missing() -> list[str]:
    return [package for program, package in PROGRAMS.items() if shutil.which(program, path=PATH) is None]


@pytest.mark.skipif(bool(missing()), reason=f"needs programs: apt-get install {' '.join(missing())}")
@pytest.mark.timeout(SECONDS + 30)
def test_every_command_of_the_page_runs(tmp_path: Path, upstream: FakeUpstream) -> None:
    words = ["pip", "download", "--no-deps", "--dest", str(tmp_path / "index"), "msgspec"]
    if subprocess.run([sys.executable, "-m", *words], capture_output=True).returncode != 0:
        pytest.skip("pip cannot reach a package index")
    upstream.otherwise = say("Hello ", "from the model")
    page = PAGE.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)
    assert page.count("```") == 2 * len(blocks)  # so none is left out
    (tmp_path / "machine").mkdir()
    with Machine(tmp_path / "machine", upstream.port) as machine:
        done = machine.run("\n".join(blocks) + "\necho all of it\n", SECONDS)
        wait_until(lambda: " reloaded" in (machine.root / "outlive.log").read_text(), "reloaded")
        logs = "\n".join(f"-- {file.name}\n{file.read_text()[-2000:]}" for file in machine.root.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{logs}"
    output = done.stdout
    assert f"outlive {__version__}\n" in output
    assert output.count('{"status":"ready"}') == 2
    assert output.count("event: response.completed") == 1 and "data: [DONE]" in output
    answer = json.loads((tmp_path / "machine" / "clone" / "restored.json").read_text())
    assert (answer["status"], answer["output"][0]["content"][0]["text"]) == ("completed", "Hello from the model")
    queried, _ = json.JSONDecoder().raw_decode(output[output.rindex('{"status":"success"') :])
    (admitted,) = queried["data"]["result"]
    assert admitted["value"][1] == "1"
    with tarfile.open(machine.root / "var/backups/outlive-etc.tar.gz") as archive:
        assert {"etc/outlive/outlive.toml", "etc/outlive/outlive.env"} <= set(archive.getnames())
    assert output.endswith("all of it\n")
