"""Starts and stops what an installed unit names, in the place of systemctl on a test's machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["MACHINE_ROOT"])
STOP_SECONDS = 40
# Services of packages, which bring their own units.
COMMANDS = {
    "nginx": ["nginx"],
    "prometheus": [
        "prometheus",
        f"--config.file={ROOT}/etc/prometheus/prometheus.yml",
        f"--storage.tsdb.path={ROOT}/var/metrics",
        f"--web.listen-address=127.0.0.1:{os.environ['MACHINE_PROMETHEUS']}",
    ],
}


def read_unit(name: str) -> dict[str, str]:
    lines = (ROOT / f"etc/systemd/system/{name}.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def start(name: str) -> None:
    words, environment = COMMANDS.get(name), dict(os.environ)
    if words is None:
        unit = read_unit(name)
        variables = Path(unit["EnvironmentFile"]).read_text().splitlines()
        words, environment = unit["ExecStart"].split(), dict(line.split("=", 1) for line in variables)
    with (ROOT / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            words, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (ROOT / f"{name}.running").write_text(str(process.pid))


def stop(name: str) -> None:
    file = ROOT / f"{name}.running"
    if file.exists():
        pid = int(file.read_text())
        watched = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        assert select.select([watched], [], [], STOP_SECONDS)[0], f"{name} does not stop"
        file.unlink()


def reload(name: str) -> None:
    pid = (ROOT / f"{name}.running").read_text()
    words = (
        [name, "-s", "reload"] if name in COMMANDS else read_unit(name)["ExecReload"].replace("$MAINPID", pid).split()
    )
    subprocess.run(words, check=True)


def main(verb: str, *names: str) -> None:
    for name in names:
        if verb == "reload" and (ROOT / f"{name}.running").exists():
            reload(name)
            continue
        if verb in ("stop", "restart"):
            stop(name)
        if verb in ("enable", "start", "restart", "reload"):
            start(name)


if __name__ == "__main__":
    main(*(word for word in sys.argv[1:] if word != "--now"))
