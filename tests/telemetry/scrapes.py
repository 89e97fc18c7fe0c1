"""Reading of scrapes with the parser of prometheus-client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.support.server import OutliveServer

# Name, without the prefix, of the metrics that prometheus-client adds about the process.
PROCESS = "process_"

Labels = frozenset[tuple[str, str]]


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.types = {family.name: family.type for family in families}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def __getitem__(self, name: str) -> float:
        """The sum of a metric over all its labels."""
        found = [value for (each, _), value in self.samples.items() if each == f"outlive_{name}"]
        assert found, name
        return sum(found)

    def get(self, name: str, **labels: str) -> float:
        """The value with these labels; 0 if there is none."""
        return self.samples.get((f"outlive_{name}", frozenset(labels.items())), 0.0)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for each, labels in self.samples if each == f"outlive_{name}"]


def scrape(server: OutliveServer) -> Scrape:
    answer = server.client.get("/metrics")
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(answer.body.decode())
