"""The reference of metrics lists exactly the metrics there are."""

from __future__ import annotations

import re
from pathlib import Path

from outlive.telemetry.metrics import METRICS, PREFIX

ROOT = Path(__file__).parent.parent.parent


def test_the_reference_lists_every_metric_with_its_type_labels_and_meaning() -> None:
    table = (ROOT / "docs" / "reference" / "metrics.md").read_text().partition("## Labels")[0]
    rows = dict(re.findall(rf"^\| `{PREFIX}(\w+)` \| (.*) \|$", table, re.M))
    assert rows == {
        name: f"{metric.type} | {', '.join(f'`{label}`' for label in metric.labels) or 'none'} | {metric.help}"
        for name, metric in METRICS.items()
    }


def test_the_reference_explains_every_label() -> None:
    explained = (ROOT / "docs" / "reference" / "metrics.md").read_text().partition("## Labels")[2]
    for metric in METRICS.values():
        for label in metric.labels:
            assert label == "version" or f"| `{label}` |" in explained
