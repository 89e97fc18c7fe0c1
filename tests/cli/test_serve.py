"""`outlive serve`: flags, the printed summary, and errors about settings."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from outlive import __version__
from outlive.cli.serve import announce
from outlive.config.load import load
from outlive.config.settings import OPTIONS, Settings
from tests.cli.conftest import Run


def test_every_setting_is_a_flag(run: Run) -> None:
    shown = run("serve", "--help", COLUMNS="200").stdout
    flags = {option.flag for option in OPTIONS.values() if option.flag}
    assert {"--config", "--upstream", "--upstream-key-file", "--api-key", "--cors-origin", "--port"} <= flags
    for flag in flags:
        assert flag in shown
    assert "Default: ." not in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "0x"], "outlive: --port must be a whole number from 0 to 65535, not '0x'.\n"),
        (
            ["--api-key", "a=k", "--api-key", "b=k"],
            "outlive: a and b have the same key; every owner needs a key of his own.\n",
        ),
        (
            ["--database", "postgresql+asyncpg://x/y"],
            "outlive: The database must be written postgresql://USER@HOST/NAME, without a driver's name.\n",
        ),
    ],
)
def test_wrong_settings_print_one_sentence_and_exit_with_2(run: Run, words: list[str], sentence: str) -> None:
    result = run("serve", *words)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)


def test_running_the_module_runs_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "outlive", "serve", "--host", "0.0.0.0"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "outlive: Without keys the server listens on this machine only, not on 0.0.0.0; "
        "give --api-key NAME=KEY to let others in.\n"
    )


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"outlive {__version__}\n"


def test_the_embedded_model_is_announced_as_a_demo_model(capsys: pytest.CaptureFixture[str]) -> None:
    announce(Settings(database="sqlite:////data/o.db"))
    shown = capsys.readouterr().out
    assert "This is a demo model: it shows durability, not intelligence." in shown
    assert "Yours: outlive serve --upstream URL" in shown
    assert "/data/o.db (responses for 30 days, conversations for ever)" in shown
    assert "curl -N http://127.0.0.1:7878/v1/responses -H 'Content-Type: application/json' -d '{\"model\"" in shown


def test_upstreams_are_announced_without_their_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "o.toml"
    file.write_text(
        """
        host = "0.0.0.0"
        [keys]
        alice = "s3cret-owner"
        [upstreams.openai]
        key = "s3cret-upstream"
        models = { fast = "gpt-4o-mini" }
        [upstreams.vllm]
        url = "http://gpu:8000/v1?token=s3cret-query"
        """
    )
    announce(load({"config": str(file)}, {}))
    shown = capsys.readouterr().out
    assert "s3cret" not in shown
    assert "openai: https://api.openai.com/v1 (openai/MODEL, every other model name, fast)" in shown
    assert "vllm: http://gpu:8000/v1 (vllm/MODEL)" in shown
    assert "with the keys of alice" in shown
    assert 'http://127.0.0.1:7878/v1/responses -H "Authorization: Bearer $KEY"' in shown
    assert '"model": "fast"' in shown


def test_a_single_upstream_is_announced_for_every_model_name(capsys: pytest.CaptureFixture[str]) -> None:
    announce(load({"upstream": "ollama", "host": "::1", "port": "1", "response_days": "1"}, {}))
    shown = capsys.readouterr().out
    assert "ollama: http://localhost:11434/v1 (every model name)" in shown
    assert "http://[::1]:1/v1, without keys, for this machine only" in shown
    assert "responses for 1 day," in shown


def test_no_example_is_printed_for_an_unknown_port(capsys: pytest.CaptureFixture[str]) -> None:
    announce(Settings(port=0))
    shown = capsys.readouterr().out
    assert "127.0.0.1, on a free port, without keys" in shown
    assert "curl" not in shown


def test_tools_are_announced(capsys: pytest.CaptureFixture[str]) -> None:
    announce(Settings(tools=["till"]))
    assert 'till, to requests with the label "outlive"' in capsys.readouterr().out
    announce(Settings(tools=["till"], offer_tools=True))
    assert "till, offered to every request" in capsys.readouterr().out


def test_a_node_announces_its_role_without_the_databases_password(capsys: pytest.CaptureFixture[str]) -> None:
    database = "postgresql://outlive:s3cret@db/outlive"
    announce(load({"database": database, "role": "worker", "upstream": "ollama"}, {}))
    shown = capsys.readouterr().out
    assert "runs responses; health checks only at http://127.0.0.1:7878" in shown
    assert "postgresql://outlive:***@db/outlive (responses" in shown
    assert "curl" not in shown and "s3cret" not in shown
    announce(load({"database": database, "role": "api", "upstream": "ollama"}, {}))
    shown = capsys.readouterr().out
    assert "Stored responses wait for a node with the role worker or all." in shown
    assert "curl" in shown


def test_an_unreachable_database_prints_one_sentence_and_exits_with_2(run: Run) -> None:
    result = run("serve", "--port", "0", "--upstream", "ollama", "--database", "postgresql://127.0.0.1:9/outlive")
    assert result.exit_code == 2
    assert result.stderr.startswith("outlive: The database cannot be reached: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_in_use_is_an_error_and_nothing_is_announced(tmp_path: Path, processes: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [sys.executable, "-m", "outlive", "serve", "--port", port, "--upstream", "ollama"]
        words += ["--database", "postgresql://127.0.0.1:9/outlive", "--processes", processes]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"outlive: Cannot listen on 127.0.0.1:{port}: Address already in use.\n"


def test_a_server_that_listens_announces_itself_once(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "outlive", "serve", "--port", "0", "--upstream", "ollama", "--grace-seconds", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"Outlive {__version__}\n"
        server.terminate()
        assert "Outlive" not in server.stdout.read()
    assert server.returncode == 0
