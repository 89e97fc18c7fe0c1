"""A machine to deploy on: a folder in the place of its root, real programs on free ports, and stand-ins for sudo,
apt-get and systemctl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.deploy.reverse_proxies import NGINX_MAIN
from tests.deploy.reverse_proxies import PATH as SYSTEM_PATH
from tests.support.postgres import PostgresServer, find_programs
from tests.support.server import free_port

ROOT = Path(__file__).parent.parent.parent
CLONE = (
    "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "constraints.txt", "src", "deploy",
)  # fmt: skip
PROGRAMS = {
    "nginx": "nginx-light", "prometheus": "prometheus", "promtool": "prometheus", "openssl": "openssl", "curl": "curl",
}  # fmt: skip

# Commands run as the user of the test.
SUDO = """#!/bin/bash
[ "$1" = -u ] && shift 2
exec "$@"
"""
# Packages are looked for, not installed; without a list of packages there is nothing to look in.
APT_GET = """#!/bin/bash
compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || exit 0
exec /usr/bin/apt-get --simulate "$@"
"""
NGINX = """#!/bin/bash
exec {program} -p {root} -e {root}/proxy.log -c {root}/nginx.conf "$@"
"""
SYSTEMCTL = """#!/bin/bash
exec {python} {file} "$@"
"""


class SecuredPostgres(PostgresServer):
    """A server whose superuser is `postgres`, by its socket; all others need a password."""

    def create(self) -> Self:
        words = ["-D", str(self.data), "-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]
        self.run("initdb", *words, "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()
        return self


class Machine:
    """Runs the commands of a page in one shell, whose folder is a clone of the repository."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self.root = folder
        self.postgres = SecuredPostgres()
        self._prometheus, https, port = free_port(), free_port(), free_port()
        # Names of places on a page, and those on this machine; the longest first.
        self._places = {
            ":7878": f":{port}",
            ":9090": f":{self._prometheus}",
            "outlive.toml --processes": f"outlive.toml --port {port} --processes",
            "outlive.example.com/": f"outlive.example.com:{https}/",
            "outlive.example.com:443:": f"outlive.example.com:{https}:",
            "listen 443 ssl": f"listen 127.0.0.1:{https} ssl",
            "127.0.0.1:8000/": f"127.0.0.1:{upstream}/",
            "@127.0.0.1/outlive": f"@127.0.0.1:{self.postgres.port}/outlive",
            "scrape_interval: 15s": "scrape_interval: 1s",
            "--directory / etc": f"--directory {self.root} etc",
        }

    def __enter__(self) -> Self:
        self.postgres.create()
        for name in ("bin", "clone", "etc/nginx/conf.d", "etc/prometheus", "etc/systemd/system", "var"):
            (self.root / name).mkdir(parents=True)
        for name in CLONE:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.root / "clone" / name)
        for file in (self.root / "clone" / "deploy").rglob("*.*"):
            if file.is_file():
                file.write_text(self.translate(file.read_text()))
        user = "user root;" if os.geteuid() == 0 else ""
        main = NGINX_MAIN.format(folder=self.root, user=user)
        (self.root / "nginx.conf").write_text(main.replace("/outlive.conf", "/etc/nginx/conf.d/*.conf"))
        program = shutil.which("nginx", path=SYSTEM_PATH)
        self._write_program("sudo", SUDO)
        self._write_program("apt-get", APT_GET)
        self._write_program("nginx", NGINX.format(program=program, root=self.root))
        file = Path(__file__).with_name("systemctl.py")
        self._write_program("systemctl", SYSTEMCTL.format(python=sys.executable, file=file))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        services = [file.stem for file in self.root.glob("*.running")]
        self.run(f"systemctl stop {' '.join(services)}", timeout=60)
        self.postgres.remove()

    def translate(self, text: str) -> str:
        """Return a page's commands, or a file of deploy/, with this machine's places."""
        for before, after in self._places.items():
            text = text.replace(before, after)
        return re.sub(r"(?<![\w/])/(opt/outlive|etc|var)(?=[/\s])", rf"{self.root}/\1", text)

    def run(self, commands: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run commands in a shell that ends with the first one that fails."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OUTLIVE_", "PG")) and name != "PYTHONPATH" and not name.lower().endswith("_proxy")
        }
        environment |= {
            "PATH": f"{self.root}/bin:{find_programs()}:{SYSTEM_PATH}",
            "PGHOST": str(self.postgres.folder),
            "PGPORT": str(self.postgres.port),
            "PGUSER": "postgres",
            "MACHINE_ROOT": str(self.root),
            "MACHINE_PROMETHEUS": str(self._prometheus),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.translate(commands)],
            cwd=self.root / "clone",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def _write_program(self, name: str, text: str) -> None:
        file = self.root / "bin" / name
        file.write_text(text)
        file.chmod(0o755)
