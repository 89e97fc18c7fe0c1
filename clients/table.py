"""The matrix as a page: which client was tried at which version, and what of it works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# What a client may be able to do, by the word that its programs use, and what that means.
FEATURES = {
    "plain": "a request and its whole answer",
    "streamed": "an answer read as it comes",
    "structured": "an answer in a given JSON schema",
    "tools": "tools that run in the client, each called once",
    "reasoning": "what the model thinks, apart from what it says",
    "images": "an image in the input",
    "chain": "`previous_response_id`: only what is new is sent, the model gets everything",
    "conversation": "the same with a conversation of the server's",
    "stateless": "`store: false`: the client sends everything itself",
    "background": "a response that is accepted, polled and fetched",
    "resume": "a stream that broke goes on where it was",
    "cancel": "a running response is ended on the server",
    "websocket": "turns over one WebSocket",
    "compact": "a history made shorter by the server",
    "tokens": "a request counted before it is sent",
    "errors": "a refusal arrives as the client's own error",
}

_BEGIN = "<!-- made by `make clients`: what stands from here to the end of the section is rewritten -->"
_END = "<!-- end of what `make clients` made -->"


@dataclass(frozen=True)
class Result:
    """What came of one check; an empty error is a success."""

    feature: str
    sentence: str
    error: str = ""


@dataclass
class Row:
    """One client: its packages with their versions, what it has no means for, and what was tried."""

    client: str
    packages: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    @property
    def version(self) -> str:
        """That of its first package, which the client is named for."""
        return next(iter(self.packages.values()), "")

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.error]

    @property
    def untold(self) -> list[str]:
        """Features of which it was neither tried nor said that they are lacking."""
        tried = {result.feature for result in self.results}
        return [feature for feature in FEATURES if feature not in tried and feature not in self.lacks]

    def cell(self, feature: str) -> str:
        if feature in self.lacks:
            return "-"
        tried = [result for result in self.results if result.feature == feature]
        if not tried or any(result.error for result in tried):
            return "**no**"
        return "yes"


def rewrite(page: str, rows: Sequence[Row]) -> str:
    """The page with its made part made anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{render(rows)}\n{_END}{after}"


def render(rows: Sequence[Row]) -> str:
    head = ["client", "version", *FEATURES]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line([row.client, row.version, *(row.cell(feature) for feature in FEATURES)]) for row in rows]
    lines += ["", _line(["word", "means"]), _line(["---", "---"])]
    lines += [_line([feature, meaning]) for feature, meaning in FEATURES.items()]
    sections = [section for row in rows for section in ("", *_tell(row))]
    return "\n".join([*lines, *sections, ""])


def _tell(row: Row) -> list[str]:
    versions = ", ".join(f"`{package}` {version}" for package, version in row.packages.items())
    lines = [f"### {row.client}", "", f"Tried: {versions}.", ""]
    for feature in FEATURES:
        for result in row.results:
            if result.feature == feature:
                mark = ": **fails**" if result.error else ""
                lines.append(f"* {feature}: {result.sentence}{mark}")
        if feature in row.lacks:
            lines.append(f"* {feature}: not tried, for it {row.lacks[feature]}")
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
