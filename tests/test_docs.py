"""The pages are true: what they name exists, what exists stands in the reference, and what can be copied works."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from outlive.cli import app
from outlive.config.load import KEYS, load
from outlive.config.presets import PRESETS
from outlive.config.settings import FIELDS, LIMITS, NEVER, OPTIONS, Settings
from outlive.core.grammar import TERMINAL_EVENTS
from outlive.engine.delivery import committer, live, reader
from outlive.http.routes import ROUTES
from outlive.storage import batching
from tests.support import grammar
from tests.support.certificates import Authority

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outlive"
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Written by `make bench`, so a fresh clone of a work in progress may not have it yet.
MEASURED = ROOT / "docs" / "performance.md"

# Every variable that a page's example reads a secret from.
SECRETS = ("LAB_KEY", "LIBRARY_TOKEN", "ALICE_KEY", "BOB_KEY", "BOB_NEXT_KEY")

page_of = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> Iterator[str]:
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S):
        yield match[1]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def reference(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text()


def rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables by what stands in backticks in their first cell."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found.setdefault(name, cells)
    return found


# -- the reference is complete


SCALARS = [name for name, option in FIELDS.items() if option.is_plain and option.type != list[str]]


@pytest.mark.parametrize("name", SCALARS)
def test_every_setting_stands_in_the_reference_with_its_names_and_default(name: str) -> None:
    cells = rows(reference("settings"))[name]
    defaults = Settings()
    default: Any = getattr(defaults, name) if hasattr(defaults, name) else getattr(defaults.limits, name)
    assert f"`{OPTIONS[name].flag}`" in cells[1]
    assert f"`{OPTIONS[name].variable}`" in cells[2]
    shown = cells[3].strip("`").replace(",", "")
    if default is None:
        assert shown == (NEVER if OPTIONS[name].never else "half")
    elif isinstance(default, bool):
        assert shown == str(default).lower()
    elif isinstance(default, float):
        assert float(shown) == default
    else:
        assert shown == str(default)


def test_limits_stand_where_the_toml_file_wants_them() -> None:
    before, _, after = reference("settings").partition("## Limits")
    for name in SCALARS:
        assert f"| `{name}` |" in (after if OPTIONS[name].table == LIMITS else before)


def test_every_other_setting_stands_in_the_reference() -> None:
    text = reference("settings")
    for option in OPTIONS.values():
        for name in (option.flag, option.variable, None if option.table is None else option.name):
            assert name is None or name in text
    for field in Settings.__struct_fields__:
        assert f"`{field}`" in text or f"[{field}]" in text
    for key in KEYS:
        assert f"`{key}`" in text


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_stands_in_the_reference_and_has_an_example(name: str) -> None:
    preset = PRESETS[name]
    table = reference("settings").partition("| preset | address |")[2]
    cells = rows(table)[name]
    assert preset.key_variable is None or f"`{preset.key_variable}`" in cells[2]
    assert cells[3] == f"`{preset.quirks['max_tokens_field']}`"
    assert cells[4] == ("yes" if preset.quirks["developer_role"] else "no")
    assert cells[5] == f"`{preset.quirks.get('continuation', 'none')}`"
    examples = list(blocks(ROOT / "docs" / "how-to" / "use-your-model.md", "toml"))
    tables = [table for text in examples for table in tomllib.loads(text)["upstreams"].items()]
    assert any(name == table.get("preset", title) for title, table in tables)


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words."""
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, inner in command.commands.items():
        yield from commands(inner, (*words, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def flags_of(command: Any) -> set[str]:
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_and_its_flags_stand_in_the_reference(words: str) -> None:
    text = reference("commands")
    assert f"`outlive {words}" in text
    flags = {option.flag for option in OPTIONS.values() if option.flag}
    settings = flags | {"--help"} | {f"--no-{flag[2:]}" for flag in flags}
    for flag in flags_of(COMMANDS[words]) - settings:
        assert not flag.startswith("--") or flag in text


def test_the_reference_names_exactly_the_routes_there_are() -> None:
    headings = set(re.findall(r"^### `([A-Z]+ \S+)`$", reference("routes"), re.M))
    assert headings == {f"{route.method} {route.path.replace(':path', '')}" for route in ROUTES}


def codes() -> set[str]:
    """Every error code in the source: of the classes, and as given to errors, `refuse` and `envelope`."""
    # Which positional argument of a function is a code.
    places = {"refuse": 2, "WrongField": 2, "envelope": 3}
    found: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            values: list[ast.expr | None] = []
            if isinstance(node, ast.Call | ast.ClassDef):
                values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if isinstance(node, ast.Call):
                place = places.get(getattr(node.func, "id", ""), len(node.args))
                values += node.args[place : place + 1]
            elif isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["code"]:
                values = [node.value]
            elif isinstance(node, ast.Constant) and re.fullmatch(
                r"[a-z]+_(above_max|below_min)_[a-z]+", str(node.value)
            ):
                values = [node]  # a code that a check picks by the kind of its value
            found |= {
                value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
            }
    return found


def test_every_error_code_stands_in_the_reference() -> None:
    found = codes()
    assert {"invalid_value", "conversation_locked", "unknown_url", "response_cancelled", "empty_array"} <= found
    text = reference("errors")
    assert [code for code in sorted(found) if f"`{code}`" not in text] == []


def test_every_error_code_in_the_reference_exists() -> None:
    table = reference("errors").partition("## A response that did not complete")[0]
    named = {
        code
        for line in table.splitlines()
        if line.startswith("|")
        for code in re.findall(r"`([a-z_]+)`", line.split("|")[2])
    }
    assert named - codes() == set()


def test_every_event_that_may_be_sent_stands_in_the_reference() -> None:
    text = reference("events")
    # The rules know a few more, which no dialect sends yet.
    unsent = ("response.output_text.annotation",)
    names = {name.split()[0] for states in grammar.ITEMS.values() for moves in states.values() for name in moves}
    events = {name for name in names if not name.startswith(unsent)}
    events |= TERMINAL_EVENTS | {"response.created", "response.queued", "response.in_progress"}
    events.add("response.output_item.added")
    assert [event for event in sorted(events) if f"`{event}`" not in text] == []


# -- what the pages name exists


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@page_of
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if linked == MEASURED:
            continue
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


# Paths of the repository, as pages write them: from the root, from the package, or of a module without its ending.
_PATH = re.compile(
    r"`((?:(?:src|tests|docs|bench|demo|core|config|ports|engine|dialects|storage|tooling|served_agents|http|cli)/[\w./*-]*)"
    r"|[\w-]+\.(?:py|sql)|constraints\.txt|[A-Z]+\.md|\.ci/run)`"
)


@page_of
def test_every_file_that_is_named_exists(page: Path) -> None:
    for name in _PATH.findall(prose(page)):
        if "NAME" in name or "NNNN" in name:
            continue
        tries = [*ROOT.glob(name.rstrip("/")), *SOURCE.glob(name.rstrip("/")), *SOURCE.glob(f"{name}.*")]
        module = SOURCE / f"{name.partition('.')[0]}.py"  # `engine/worker.Worker.cancel`: see test_architecture.py
        assert tries or module.exists() or list(SOURCE.rglob(name)), name


@page_of
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.M))
    assert named <= targets


def test_every_invariant_has_its_test() -> None:
    page = ROOT / "ARCHITECTURE.md"
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert named
    text = (ROOT / "tests" / "test_invariants.py").read_text()
    assert named <= set(re.findall(r"def (test_\w+)", text))


def test_every_promise_of_the_threat_model_has_its_tests() -> None:
    tests = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    promises = (ROOT / "docs" / "threat-model.md").read_text().partition("## Promises")[2].partition("## Not")[0]
    lines = [line for line in promises.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(lines) > 20
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line)
        assert named and set(named) <= tests, line


def test_every_decision_that_the_code_names_is_explained() -> None:
    named = {name for file in SOURCE.rglob("*.py") for name in re.findall(r"\bD\d+b?\b", file.read_text())}
    explained = set(re.findall(r"\*\*(D\d+b?)\.", (ROOT / "docs" / "decisions" / "wire.md").read_text()))
    assert named <= explained
    assert explained == {f"D{n}" for n in range(1, 28)} | {"D6b"}


def test_every_table_stands_in_the_architecture() -> None:
    files = (SOURCE / "storage" / "sqlite" / "migrations").glob("*.sql")
    tables = {name for file in files for name in re.findall(r"^CREATE TABLE (\w+)", file.read_text(), re.M)}
    assert tables <= rows((ROOT / "ARCHITECTURE.md").read_text()).keys()


def test_the_architectures_numbers_are_the_codes() -> None:
    text = re.sub(r"\s+", " ", (ROOT / "ARCHITECTURE.md").read_text())
    for sentence in (
        f"in pages of {reader.PAGE_BYTES // 1024} KB",
        f"pile up ({live.PENDING_BYTES // 1024**2} MB)",
        f"`commit_ms` ({Settings().commit_ms:g}) at most",
        f"at most {batching.MAX_JOBS} jobs",
        f"Responses end {committer.ENDINGS} at a time",
        f"waits {batching.PAUSE_PER_JOB * 1000:g} ms for each but the first, {batching.MAX_PAUSE * 1000:g} ms at most",
    ):
        assert sentence in text


# -- what can be copied works


@page_of
def test_python_snippets_compile(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, str(page), "exec")


@page_of
def test_json_snippets_parse(page: Path) -> None:
    for text in blocks(page, "json"):
        json.loads(text)


def bodies(text: str) -> Iterator[str]:
    """The JSON that curl is given, on its command line or on its standard input."""
    yield from re.findall(r"-d '(.*?)'", text, re.S)
    yield from re.findall(r"<<JSON\n(.*?)^JSON$", text, re.M | re.S)


@page_of
def test_every_curl_body_parses(page: Path) -> None:
    for text in blocks(page, "sh"):
        for body in bodies(text):
            assert isinstance(json.loads(body), dict)
        assert len(list(bodies(text))) == len(re.findall(r" -d ", text))


@page_of
def test_toml_snippets_are_settings(page: Path, tmp_path: Path) -> None:
    environ = {name: f"secret-{name.lower()}" for name in SECRETS}
    environ |= {preset.key_variable: "secret" for preset in PRESETS.values() if preset.key_variable}
    authority = Authority(tmp_path)
    cert, key = authority.sign("client")
    files = {"lab-ca.pem": authority.file, "outlive.pem": cert, "outlive.key": key}
    for n, text in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{n}.toml"
        for name, made in files.items():
            text = text.replace(f"/etc/outlive/{name}", str(made))
        file.write_text(text)
        load({"config": str(file)}, environ)


@page_of
def test_every_outlive_command_that_can_be_copied_exists(page: Path) -> None:
    for text in blocks(page, "sh"):
        for line in text.splitlines():
            command = re.match(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(outlive .*)", line)
            if command is None:
                continue
            words = shlex.split(command[1], comments=True)
            name = next((name for name in COMMANDS if words[1 : 1 + len(name.split())] == name.split()), None)
            assert name is not None, line
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= flags_of(COMMANDS[name]), line
