"""Reading [owners.NAME] and [prices."MODEL"] of the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.config.load import load, make_prices
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.core.owners import Policy
from outlive.core.usage import Price


def read(folder: Path, text: str) -> Settings:
    (folder / "outlive.toml").write_text(text)
    return load({"config": str(folder / "outlive.toml")}, {})


def test_policies_and_prices_are_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        '[owners.anna]\nstorage = "never"\nmodels = ["m"]\nbudget_per_month = 5\n'
        '[prices."a/b"]\ninput = 1\noutput = 2.5\ncached_input = 0',
    )
    assert settings.owners == {"anna": Policy(storage="never", models=["m"], budget_per_month=5.0)}
    assert settings.prices == {"a/b": Price(input=1.0, output=2.5, cached_input=0.0)}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[owners]\nanna = 1", "[owners.NAME]"),
        ("[owners.anna]\ncolour = 1", "colour"),
        ('[owners.anna]\nstorage = "maybe"', "allowed, never"),
        ("[owners.anna]\nretention_days = 0", "retention_days"),
        ("[owners.anna]\nrequests_per_minute = -1", "requests_per_minute"),
        ('[owners.anna]\nmodels = "m"', "list of names"),
        ("[prices.m]\ninput = 1", "has no output"),
        ("[prices.m]\ninput = -1\noutput = 1", "input"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(tmp_path, text)
    assert named in refused.value.message


def test_prices_of_well_known_models_are_looked_up_in_dollars_only() -> None:
    found = make_prices(Settings()).find("openai/gpt-4o", "openai")
    assert found is not None and 0 < found.input < found.output and (found.cached_input or 0) < found.input
    assert make_prices(Settings()).find("nobodys-model", "x") is None
    assert make_prices(Settings(currency="EUR")).find("openai/gpt-4o", "openai") is None
    assert make_prices(Settings(prices={"gpt-4o": Price(input=1.0, output=1.0)})).find("x/gpt-4o", "x") == Price(
        input=1.0, output=1.0
    )
