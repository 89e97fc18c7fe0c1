"""Tools as the settings name them: modules are found, and what is wrong with one ends the start with a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive.config.settings import Settings
from outlive.config.user_modules import load_module, load_object
from outlive.core.errors import SettingsError
from outlive.core.requests.create import CreateResponse
from outlive.storage.key_file import KeyFileSeal, make_seal
from outlive.storage.seal import SecretSeal
from outlive.tooling.build import build_tools, read_tools
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
    """Modules are looked for where the server is started, and a test's are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(name: str, text: str) -> None:
    Path(f"{name}.py").write_text(text)


def complaint(*tools: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read_tools(Settings(tools=list(tools)))
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_module_or_one_function_of_it_can_be_named() -> None:
    write("good_tools", GOOD)
    assert [tool.spec.name for tool in read_tools(Settings(tools=["good_tools"]))] == ["weather", "news"]
    assert [tool.spec.name for tool in read_tools(Settings(tools=["good_tools:news"], tool_seconds=7))] == ["news"]
    assert read_tools(Settings(tools=["good_tools"], tool_seconds=7))[0].seconds == 7


def test_what_is_wrong_with_a_module_is_said_in_one_sentence() -> None:
    write("good_tools", GOOD)
    write("needy", "import nothing_of_the_sort")
    write("broken", "1 / 0")
    write("leaving", "raise SystemExit(2)")
    write("garbled", "def (")
    write("empty", "x = 5")
    assert complaint("nowhere_at_all").startswith("--tools names the module nowhere_at_all, which is not there;")
    assert complaint("nowhere.at.all").startswith("--tools names the module nowhere.at.all, which is not there;")
    assert "needs the module nothing_of_the_sort, which is not there." in complaint("needy")
    assert complaint("broken") == (
        "The module broken (--tools) cannot be imported: ZeroDivisionError: division by zero."
    )
    assert "SystemExit" in complaint("leaving")
    assert "SyntaxError" in complaint("garbled")
    assert complaint("empty") == "The module empty has no function that could be a tool."
    assert complaint("good_tools:rain") == "The module good_tools (--tools) has nothing named rain."
    assert complaint("empty:x") == "empty:x is no function, so it cannot be a tool."
    assert complaint("good_tools:") == "--tools must be written MODULE:NAME, not 'good_tools:'."
    assert complaint("good_tools", "good_tools:news") == (
        "There are two tools named news, one of them in good_tools:news."
    )


def test_an_object_can_be_named_by_its_path() -> None:
    write("things", "class A:\n    b = 5\n")
    assert load_object("things:A.b", "--agent")[1] == 5
    assert load_module("things", "--agent").A.b == 5


def test_tools_are_offered_to_those_who_ask_or_to_all() -> None:
    write("good_tools", GOOD)
    plain = CreateResponse(model="m", input=[])
    asks = CreateResponse(model="m", input=[], tools=[{"type": "mcp", "server_label": "outlive"}])
    shy = build_tools(Settings(tools=["good_tools"]), CountingIds(), None)
    assert (shy.toolbox.serves(plain), shy.toolbox.serves(asks)) == (False, True)
    open_handed = build_tools(Settings(tools=["good_tools"], offer_tools=True), CountingIds(), None)
    assert open_handed.toolbox.serves(plain)
    assert not build_tools(Settings(offer_tools=True), CountingIds(), None).toolbox.serves(plain)


def test_the_limits_of_the_settings_hold() -> None:
    tools = build_tools(Settings(max_steps=5, max_tool_output=9), CountingIds(), None)
    assert (tools.max_steps, tools.max_output) == (5, 9)


def test_secrets_are_sealed_with_the_key_that_was_given_or_one_beside_the_file() -> None:
    given = make_seal(Settings(seal_keys=["k" * 32]))
    assert isinstance(given, SecretSeal)
    assert isinstance(make_seal(Settings()), KeyFileSeal)
    assert make_seal(Settings(database="postgresql://db/outlive")) is None


def test_the_module_of_the_page_works_as_it_stands() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "write-tools.md"
    text = page.read_text().partition("```python\n")[2].partition("```")[0]
    write("till", text)
    price, order = read_tools(Settings(tools=["till"]))
    assert (price.spec.name, price.idempotent, price.read_only) == ("price", True, True)
    assert price.spec.parameters["properties"]["article"]["description"] == "The article's number."
    assert (order.seconds, order.idempotent) == (120, False)
    assert order.spec.parameters["properties"]["pieces"]["description"] == "How many."
