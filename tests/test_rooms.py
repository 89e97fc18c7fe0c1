"""The rooms of the house: who may import whom, where nothing may wait, and that each module says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outlive"

# Room -> the rooms it may import besides itself. Whatever stands above the rooms (settings, wiring, commands) may
# import all of them, and none of them may import it.
ROOMS = {
    "core": set(),
    "ports": {"core"},
    "translate": {"core", "ports"},
    "engine": {"core", "ports"},
    "adapters": {"core", "ports", "translate"},
    "http": {"core", "ports", "engine"},
}
# Single modules that any room above the pure ones may use.
SHARED = {"armed"}
PURE = ("core", "translate")
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


def modules(*rooms: str) -> list[Path]:
    folders = [SOURCE / room for room in rooms] or [SOURCE]
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


def rooms_of(path: Path) -> set[str]:
    """The parts of the product that a module imports: rooms, or modules that stand above them."""
    own = {name.split(".")[1] for name in imports(path) if name.startswith("outlive.")}
    return {part for part in own if not part.startswith("__")}


@pytest.mark.parametrize("path", modules(*ROOMS), ids=name_of)
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0]
    allowed = ROOMS[room] | {room} | (set() if room in PURE else SHARED)
    assert rooms_of(path) <= allowed


def test_every_folder_of_the_product_is_a_room_or_stands_above_them() -> None:
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert set(ROOMS) <= folders
    above = folders - set(ROOMS)
    assert above <= {"cli", "web", "agents", "client"}, "a new folder must be given its place in ROOMS, or above them"


@pytest.mark.parametrize("path", modules(*PURE), ids=name_of)
def test_pure_rooms_neither_wait_nor_look_outside(path: Path) -> None:
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
    room = path.relative_to(SOURCE).parts[0]
    assert (ROOT / "tests" / room / f"test_{path.name}").exists()


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_file_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
