"""Loading of the tools that the settings name, and the error for each module that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive.app import build_tools
from outlive.config.settings import Settings
from outlive.config.user_modules import load_module, load_object
from outlive.core.errors import SettingsError
from outlive.core.requests.create import CreateResponse
from outlive.storage.seal import SecretSeal, make_seal
from outlive.tooling.functions import load_tools
from tests.support.scripting import CountingIds

GOOD = '''
"""Tools for a test."""

def weather(city: str) -> str:
    """Tells it."""
    return "fine"

def news(topic: str) -> str:
    """Tells them."""
    return "none"
'''


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test in a folder of its own, where modules are searched, and unload its modules afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(name: str, text: str) -> None:
    Path(f"{name}.py").write_text(text)


def error_of(*tools: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_tools(tools, 60)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_module_or_one_of_its_functions_is_loaded() -> None:
    write("good_tools", GOOD)
    assert [tool.spec.name for tool in load_tools(["good_tools"], 60)] == ["weather", "news"]
    assert [tool.spec.name for tool in load_tools(["good_tools:news"], 7)] == ["news"]
    assert load_tools(["good_tools"], 7)[0].seconds == 7


def test_a_module_that_cannot_be_used_is_refused_with_one_sentence() -> None:
    write("good_tools", GOOD)
    write("needy", "import nothing_of_the_sort")
    write("broken", "1 / 0")
    write("leaving", "raise SystemExit(2)")
    write("garbled", "def (")
    write("empty", "x = 5")
    assert error_of("nowhere_at_all").startswith("--tools names the module nowhere_at_all, which is not there;")
    assert error_of("nowhere.at.all").startswith("--tools names the module nowhere.at.all, which is not there;")
    assert "needs the module nothing_of_the_sort, which is not there." in error_of("needy")
    assert error_of("broken") == (
        "The module broken (--tools) cannot be imported: ZeroDivisionError: division by zero."
    )
    assert "SystemExit" in error_of("leaving")
    assert "SyntaxError" in error_of("garbled")
    assert error_of("empty") == "The module empty has no function that could be a tool."
    assert error_of("good_tools:rain") == "The module good_tools (--tools) has nothing named rain."
    assert error_of("empty:x") == "empty:x is no function, so it cannot be a tool."
    assert error_of("good_tools:") == "--tools must be written MODULE:NAME, not 'good_tools:'."
    assert error_of("good_tools", "good_tools:news") == (
        "There are two tools named news, one of them in good_tools:news."
    )


def test_an_object_is_loaded_by_its_dotted_path() -> None:
    write("things", "class A:\n    b = 5\n")
    assert load_object("things:A.b", "--agent")[1] == 5
    assert load_module("things", "--agent").A.b == 5


def test_tools_are_offered_to_requests_that_name_them_or_to_all() -> None:
    write("good_tools", GOOD)
    plain = CreateResponse(model="m", input=[])
    asks = CreateResponse(model="m", input=[], tools=[{"type": "mcp", "server_label": "outlive"}])
    on_request = build_tools(Settings(tools=["good_tools"]), CountingIds(), None)
    assert (on_request.toolbox.serves(plain), on_request.toolbox.serves(asks)) == (False, True)
    always = build_tools(Settings(tools=["good_tools"], offer_tools=True), CountingIds(), None)
    assert always.toolbox.serves(plain)
    assert not build_tools(Settings(offer_tools=True), CountingIds(), None).toolbox.serves(plain)


def test_the_limits_come_from_the_settings() -> None:
    tools = build_tools(Settings(max_steps=5, max_tool_output=9), CountingIds(), None)
    assert (tools.max_steps, tools.max_output) == (5, 9)


def test_secrets_are_sealed_with_the_configured_key_or_one_beside_the_database(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'outlive.db'}", tmp_path / "outlive.db.key"
    for keys, is_made in ((["k" * 32], False), ([], True)):
        seal = make_seal(url, keys)
        assert isinstance(seal, SecretSeal)
        assert seal.open(seal.close(b"canary", "for a test"), "for a test") == b"canary"
        assert file.exists() == is_made
    assert make_seal("postgresql://db/outlive", []) is None


def test_the_module_on_the_documentation_page_loads_unchanged() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "write-tools.md"
    text = page.read_text().partition("```python\n")[2].partition("```")[0]
    write("till", text)
    price, order = load_tools(["till"], 60)
    assert (price.spec.name, price.idempotent, price.read_only) == ("price", True, True)
    assert price.spec.parameters["properties"]["article"]["description"] == "The article's number."
    assert (order.seconds, order.idempotent) == (120, False)
    assert order.spec.parameters["properties"]["pieces"]["description"] == "How many."
