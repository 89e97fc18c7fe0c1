"""Checks of the source layout: import direction, pure files, a docstring in each module, file length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outlive"

# Package -> the packages it may import besides itself. `app`, `server` and `cli` assemble the product: they may import
# every package, and no package imports them.
LAYERS: dict[str, set[str]] = {
    "core": set(),
    "ports": {"core"},
    "config": {"core", "ports"},
    "engine": {"core", "ports"},
    "dialects": {"core", "ports"},
    "storage": {"core", "ports", "config"},
    "tooling": {"core", "ports", "config", "dialects"},
    "served_agents": {"core", "ports", "config", "dialects"},
    "http": {"core", "ports", "engine"},
    "telemetry": {"core", "ports", "engine"},
}
# Modules that every package with side effects may import.
SHARED = {"failpoints"}
# Pure files: no await, clock, randomness or I/O. In a dialect everything but the backend is pure.
PURE_PACKAGES = ("core",)
PURE_FILES = (
    "dialects/*.py",
    "dialects/chat/*.py",
    "dialects/responses/*.py",
    "dialects/anthropic/*.py",
    "served_agents/translator.py",
    "engine/run/plans.py",
)
IMPURE_FILES = {"dialects/build.py"}
# What waits, looks at a clock, draws lots, or touches the outside world.
IMPURE = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "datetime",
    "fcntl",
    "http",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "secrets",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "starlette",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "uvicorn",
    "uvloop",
}


def pure_files() -> list[Path]:
    found = {path for package in PURE_PACKAGES for path in (SOURCE / package).rglob("*.py")}
    found |= {path for pattern in PURE_FILES for path in SOURCE.glob(pattern)}
    return sorted(path for path in found if path.name != "backend.py" and name_of(path) not in IMPURE_FILES)


def modules(*packages: str) -> list[Path]:
    folders = [SOURCE / package for package in packages] or [SOURCE]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a module imports, wherever in it the import stands."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path: Path) -> set[str]:
    """Return the top-level packages and modules of the product that a module imports."""
    own = {name.split(".")[1] for name in imports(path) if name.startswith("outlive.")}
    return {part for part in own if not part.startswith("__")}


@pytest.mark.parametrize("path", modules(*LAYERS), ids=name_of)
def test_a_package_imports_only_packages_below_it(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0]
    allowed = LAYERS[package] | {package} | (set() if path in pure_files() else SHARED)
    assert packages_of(path) <= allowed


def test_every_package_has_a_place_in_the_layers() -> None:
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders - set(LAYERS) <= {"cli", "web", "agents", "client"}, "give a new package its place in LAYERS"
    assert set(LAYERS) <= folders


@pytest.mark.parametrize("path", pure_files(), ids=name_of)
def test_pure_files_neither_wait_nor_do_io(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} & IMPURE == set()
    nodes = list(ast.walk(parse(path)))
    assert not [
        node for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    ]
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not set(calls) & {"open", "print", "input"}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_opens_with_a_sentence(path: Path) -> None:
    docstring = ast.get_docstring(parse(path))
    assert docstring, "say in one sentence what the module is for"
    assert "." in docstring.split("\n\n")[0], docstring


@pytest.mark.parametrize(
    "path", [path for path in modules("core", "engine") if path.name != "__init__.py"], ids=name_of
)
def test_every_module_of_core_and_engine_has_a_namesake_test(path: Path) -> None:
    assert (ROOT / "tests" / path.relative_to(SOURCE).parent / f"test_{path.name}").exists()


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_file_has_at_most_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def module_name(path: Path) -> str:
    return ".".join(("outlive", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle, or nothing."""
    done: set[str] = set()

    def visit(module: str, above: list[str]) -> list[str]:
        if module in above:
            return above[above.index(module) :]
        if module in done:
            return []
        for imported in sorted(graph[module]):
            if cycle := visit(imported, [*above, module]):
                return cycle
        done.add(module)
        return []

    return next((cycle for module in graph if (cycle := visit(module, []))), [])


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_there_is_no_import_cycle_also_not_for_type_checking() -> None:
    names = {module_name(path): path for path in modules()}
    graph = {name: {each for each in imports(path) if each in names} - {name} for name, path in names.items()}
    # `from outlive.core import events` imports the module, not its package.
    packages = {name for name, path in names.items() if path.name == "__init__.py"}
    assert find_cycle({name: found - packages for name, found in graph.items() if name not in packages}) == []
