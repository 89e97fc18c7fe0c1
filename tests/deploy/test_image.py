"""The image of deploy/Dockerfile: buildah builds it on a base that debootstrap makes, so that no registry of images is
needed, and podman runs it as deploy/compose.yaml says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.http_client import HttpClient
from tests.support.postgres import DATABASES
from tests.support.server import free_port
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
SECONDS = 600
KEY = "a-key-of-32-characters-123456789"
NAME = "outlive-test"
RELEASE = "trixie"  # its python3 is the version that the Dockerfile names
# Files of this machine by which pip finds its index; elsewhere there may be none.
PIP = {Path.home() / ".config/pip/pip.conf": "/etc/pip.conf"} | {
    Path(name): name for name in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
}
# Mounts of its own, which end with it. Where cgroups of both versions are mounted, podman's runtime starts nothing.
MOUNTS = ("unshare", "--mount", "sh", "-c", "umount /sys/fs/cgroup/unified 2>/dev/null; echo made; exec cat")
# As in deploy/compose.yaml, on the network of this machine; the limits are those that any root may set.
AS_COMPOSED = (
    *("--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host"),
    *("--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"),
)

Engine = Callable[..., str]


pytestmark = [
    pytest.mark.skipif(
        "OUTLIVE_TEST_IMAGE" not in os.environ, reason="takes two minutes and needs root: `make image` runs it"
    ),
    pytest.mark.timeout(SECONDS),
]


def run(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Runs podman with a store of its own, which has the image."""
    mirror = run("apt-get", "indextargets", "--format=$(REPO_URI)").split()[0]
    folder = Path(tempfile.mkdtemp(prefix="outlive-image-"))  # podman takes no long path
    base = folder / "base"
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", RELEASE, base, mirror)
    with subprocess.Popen(MOUNTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"made\n"
        store = ("--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "overlay")

        def use(program: str, *words: str | Path) -> str:
            return run("nsenter", "--mount", f"--target={holder.pid}", program, *store, *words)

        container = use("buildah", "from", "--isolation=chroot", "scratch")
        use("buildah", "copy", container, base, "/")
        use("buildah", "commit", "--rm", container, "localhost/base")
        mounts = [f"--volume={file}:{place}:ro" for file, place in PIP.items() if file.exists()]
        words = ("--isolation=chroot", "--network=host", "--format=docker", "--pull-never", *mounts)
        words += ("--build-arg=BASE=localhost/base", "--build-arg=EMBEDDED=yes")
        use("buildah", "bud", *words, f"--file={ROOT}/deploy/Dockerfile", f"--tag={NAME}", ROOT)
        yield partial(use, "podman")
        use("podman", "rm", "--all", "--force")
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["embedded-model-on-sqlite", "upstream-on-postgres"])
def test_the_image_serves_on_a_read_only_root_and_keeps_what_it_stored(
    engine: Engine, upstream: FakeUpstream, name: str
) -> None:
    port = free_port()
    variables = {"OUTLIVE_PORT": str(port), "OUTLIVE_API_KEYS": f"alice={KEY}"}
    if name == "upstream-on-postgres":
        upstream.otherwise = say("Hello ", "from the model")
        variables |= {"OUTLIVE_DATABASE": DATABASES.create(), "OUTLIVE_UPSTREAM": upstream.url}
    given = [f"--env={variable}={value}" for variable, value in variables.items()]
    engine("run", "--detach", f"--name={name}", *AS_COMPOSED, *given, f"localhost/{NAME}")
    client = HttpClient(port, KEY)

    def wait_ready() -> None:
        wait_until(lambda: client.ready_status() == 200, "the server in the container is ready")

    wait_ready()
    engine("healthcheck", "run", name)
    assert engine("exec", name, "id", "-u") == "10001"
    with pytest.raises(AssertionError, match="Read-only file system"):
        engine("exec", name, "touch", "/opt/outlive/file")
    made = client.create("demo", input="Say hello.", max_output_tokens=20)
    assert made.json()["output"][0]["content"][0]["text"], made
    engine("kill", "--signal=KILL", name)
    engine("start", name)
    wait_ready()
    assert client.get(f"/v1/responses/{made.json()['id']}").json() == made.json()
    engine("stop", "--time=30", name)
    (state,) = json.loads(engine("inspect", name))
    assert state["State"]["ExitCode"] == 0
