"""Importing the client loads nothing of the server."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

SCRIPT = """
import sys
import openai
before = set(sys.modules)
import outlive.client
print(*(name for name in sys.modules if name.startswith("outlive") and not name.startswith("outlive.client")))
heavy = {"aiohttp", "starlette", "uvicorn", "uvloop", "typer", "rich", "msgspec", "httptools"}
print(*heavy & (set(sys.modules) - before))
"""
MISSING = """
import sys
sys.modules["openai"] = None
import outlive.client
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_importing_the_client_imports_nothing_of_the_server() -> None:
    done = run(SCRIPT)
    assert done.stdout.split("\n")[:2] == ["outlive", ""], done.stderr


def test_import_without_the_sdk_explains_how_to_install_it() -> None:
    assert "pip install 'outlive[agents]'" in run(MISSING).stderr


def test_server_does_not_depend_on_the_sdk() -> None:
    needed = [each for each in requires("outlive") or [] if each.startswith("openai")]
    assert needed
    assert all("extra ==" in each for each in needed)
