"""The files of deploy/ that start Outlive: a systemd unit, an image, a Compose file and Kubernetes manifests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from outlive.config.load import load
from outlive.config.settings import OPTIONS, Settings
from outlive.http.routes import OPEN_PATHS

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "outlive.service"
MANIFESTS = DEPLOY / "kubernetes" / "outlive.yaml"
COMPOSE = DEPLOY / "compose.yaml"
IMAGE = DEPLOY / "Dockerfile"

KEYS = {"OUTLIVE_API_KEYS": "alice=a-key-of-32-characters-1234567", "MODEL_KEY": "upstream-key"}
# What `systemd-analyze security` may find at most, on its scale from 0 to 10; 1.2 with systemd 252.
MOST_EXPOSURE = 1.5

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)


# -- systemd


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here."""
    text = UNIT.read_text()
    assert "=/opt/outlive/bin/outlive serve" in text
    file = tmp_path / UNIT.name
    file.write_text(text.replace("/opt/outlive/bin/outlive", sys.executable))
    return file


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@needs_systemd
def test_systemd_accepts_the_unit_and_rates_it_well(unit: Path) -> None:
    verified = analyze("verify", "--man=no", "--recursive-errors=no", unit)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSURE * 10:g}", unit)
    assert rated.returncode == 0, rated.stdout


def test_the_unit_waits_for_the_grace_periods_of_its_processes() -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    unit = parser["Service"]
    processes = int(unit["ExecStart"].partition(" --processes ")[2])
    assert float(unit["TimeoutStopSec"]) > processes * Settings().grace_seconds
    assert unit["KillMode"] == "mixed"  # the supervisor drains one process after the other


# -- Kubernetes


def manifests() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


@pytest.mark.parametrize("kind", manifests())
def test_manifests_follow_the_schemas_of_kubernetes(kind: str) -> None:
    kubernetes_validate.validate(manifests()[kind], "1.31", strict=True)


def test_manifests_name_the_same_pods_ports_and_paths(tmp_path: Path) -> None:
    kinds = manifests()
    pods = kinds["Deployment"]["spec"]["template"]
    labels = pods["metadata"]["labels"]
    (container,) = pods["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert kinds["Service"]["spec"]["selector"] == labels
    assert {port["targetPort"] for port in kinds["Service"]["spec"]["ports"]} <= set(ports)
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert kinds[kind]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["minAvailable"] < kinds["Deployment"]["spec"]["replicas"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN_PATHS
        assert container[probe]["httpGet"]["port"] in ports

    file = tmp_path / "outlive.toml"
    file.write_text(kinds["ConfigMap"]["data"]["outlive.toml"])
    settings = load({"config": str(file)}, KEYS)
    assert (settings.port, settings.metrics_port) == (ports["http"], ports["metrics"])
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pods["spec"]["terminationGracePeriodSeconds"] > sleep + settings.grace_seconds


# -- the image, and Compose


def test_the_image_runs_without_root_and_copies_files_that_exist() -> None:
    text = IMAGE.read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M)
    files = {file for line in copied for file in line.split()}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert files == let_through and all((ROOT / file).exists() for file in files)
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", text, re.M)
    variables = dict(re.findall(r"\b(OUTLIVE_\w+)=(\S+)", text))
    assert variables.pop("OUTLIVE_DATABASE") == "sqlite:////data/outlive.db" and "VOLUME /data" in text
    assert load({}, KEYS | variables).host == "0.0.0.0"


def test_the_compose_file_follows_the_schema_and_names_real_variables() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    service = yaml.safe_load(COMPOSE.read_text())["services"]["outlive"]
    known = {option.variable for option in OPTIONS.values()}
    assert set(service["environment"]) <= known
    assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == IMAGE
    assert int(service["stop_grace_period"].rstrip("s")) > Settings().grace_seconds
    assert service["read_only"] and service["cap_drop"] == ["ALL"]


def test_the_python_of_the_image_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (version,) = re.findall(r"^ARG BASE=\S+/python:(3\.\d+)-", IMAGE.read_text(), re.M)
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
