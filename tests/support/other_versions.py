"""Libraries as a later version may be: in processes that a test starts, what is private in them has other names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_SITE = """
from importlib.machinery import SourceFileLoader
from pathlib import Path

def get_code(self, name, original=SourceFileLoader.get_code):
    if name.split(".")[0] != {package!r}:
        return original(self, name)
    source = Path(self.path).read_text()
    for word in {words!r}:
        source = source.replace(word, word + "_of_a_later_version")
    return compile(source, self.path, "exec", dont_inherit=True)

SourceFileLoader.get_code = get_code
"""


def rename(folder: Path, package: str, *words: str) -> dict[str, str]:
    """Return the variables for processes in which these words of a package's source have another spelling."""
    (folder / "sitecustomize.py").write_text(_SITE.format(package=package, words=words))
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)])}


def run_tests(env: dict[str, str], *arguments: str) -> None:
    """Run tests in a process with these variables. They must pass, and none may be left out."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
