"""The npm package and the served file are one source; its types and other runtimes agree with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from outlive import __version__
from tests.client.test_cuts import SCRIPT
from tests.js.test_following import check_whole, read_all
from tests.support.javascript import LIBRARY, ROOT, JavaScript, find_installed, find_program
from tests.support.proxy import Cut, DropAnswer, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

PACKAGE = ROOT / "clients" / "js"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as npm packs it, unpacked."""
    folder = tmp_path_factory.mktemp("packed")
    # Packing replaces the link to the source by the file for a moment, so it is done in a copy.
    source = folder / "clients" / "js"
    shutil.copytree(PACKAGE, source, symlinks=True)
    (folder / LIBRARY.relative_to(ROOT)).parent.mkdir(parents=True)
    shutil.copy(LIBRARY, folder / LIBRARY.relative_to(ROOT))
    command = [find_program("npm"), "pack", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, cwd=source, check=True, timeout=60)
    assert (source / "outlive.js").is_symlink()
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def test_the_package_holds_the_file_that_the_server_serves(packed: Path, server: OutliveServer) -> None:
    served = server.client.get("/outlive.js")
    assert served.headers["content-type"].startswith("text/javascript")
    assert (packed / "outlive.js").read_bytes() == LIBRARY.read_bytes() == served.body
    described = json.loads((packed / "package.json").read_text())
    assert described["version"] == __version__
    assert "dependencies" not in described
    exported = {path for entry in described["exports"].values() for path in entry.values()}
    assert all((packed / path).is_file() for path in exported)
    assert (PACKAGE / "outlive.js").resolve() == LIBRARY


def test_a_browser_that_has_the_file_is_answered_without_it(server: OutliveServer) -> None:
    served = server.client.get("/outlive.js")
    again = server.client.get("/outlive.js", **{"if-none-match": served.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("runtime", [["deno", "run", "--allow-all"], ["bun"]], ids=["deno", "bun"])
def test_other_runtimes_follow_a_stream_that_is_cut(
    runtime: list[str], server: OutliveServer, upstream: FakeUpstream
) -> None:
    with JavaScript(str(find_installed(runtime[0])), *runtime[1:]) as running:
        for cut in (Cut(7, 1, "close"), Cut(40, 0, "clean"), Cut(101, 30), DropAnswer()):
            with Proxy(server.port, cut) as proxy:
                got = read_all(running, proxy.base_url, upstream.model(SCRIPT))
            check_whole(server, got)
            assert got["states"].count("reconnecting") == 1


TYPED = """
import { Fold, Outlive, OutliveError, parseToken, token } from "outlive";

const outlive = new Outlive({ baseURL: "/v1", ticket: async () => "t", retry: { tries: 3 } });
const fold = new Fold();
const stream = outlive.stream({ model: "m", input: "Hi" }, { onState: (state) => console.log(state === "ended") });
for await (const event of stream) fold.add(event);
for await (const event of outlive.follow("resp_1", { after: 1 })) console.log(event.sequence_number + 1);
const text: string = fold.text;
const status: string = (await outlive.poll(stream.token!)).status;
const running: string[] = (await outlive.running("conv_1")).map((each) => each.id);
const position: number | null = parseToken(token({ id: "resp_1" })).after;
await outlive.conversations.items("conv_1", { limit: 5 });
try { await outlive.request("GET", "/models"); } catch (error) {
  if (error instanceof OutliveError) console.log(error.status, error.code);
}
// @ts-expect-error: there is no such state
outlive.follow("resp_1", { onState: (state) => state === "dead" });
export { position, running, status, text };
"""


def test_the_types_describe_the_module(packed: Path, node: JavaScript) -> None:
    compiler = find_installed("tsc")
    folder = packed.parent / "typed"
    (folder / "node_modules").mkdir(parents=True)
    (folder / "node_modules" / "outlive").symlink_to(packed)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "use.ts").write_text(TYPED)
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    checked = subprocess.run([compiler, *options, "use.ts"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout
    # What is declared exists, and what exists is declared.
    declared = (packed / "outlive.d.ts").read_text()
    for name in node.run("return Object.keys(library)"):
        assert f"declare class {name}" in declared or f"declare function {name}" in declared or name in declared
    members = node.run(
        "return Object.getOwnPropertyNames(library.Outlive.prototype).filter((name) => name !== 'constructor')"
    )
    assert [name for name in members if f" {name}" not in declared] == []
