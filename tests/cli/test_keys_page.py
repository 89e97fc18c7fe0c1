"""The how-to guide docs/how-to/keys.md: every command on it, in its order, in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keys.md"


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
    # The server looks into the database twice a second, and a wrong key would be answered late.
    script = script.replace("export OUTLIVE_KEY", "sleep 1\nexport OUTLIVE_KEY")
    script = script.replace("http://127.0.0.1:7878", "$TESTED_SERVER")
    python = f'outlive() {{ "{sys.executable}" -m outlive "$@"; }}\n'
    with FakeUpstream() as upstream, OutliveServer(tmp_path, upstream.url) as server:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", python + script],
            cwd=tmp_path,
            env={**os.environ, "TESTED_SERVER": server.url},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert "alice\tuser" in done.stdout and '"object":"conversation"' in done.stdout and "key.revoked" in done.stdout
    assert "olk_" not in done.stdout  # each key went into a variable
