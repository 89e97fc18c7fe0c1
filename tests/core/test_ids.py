"""Identifiers have the prefixes that clients know, and a shape that can go into a path."""

from __future__ import annotations

import pytest

from outlive.clock import RandomIds
from outlive.core.ids import ITEM_PREFIXES, IdSource, is_well_formed, item_prefix
from tests.support.scripting import CountingIds


@pytest.mark.parametrize(("type_", "prefix"), sorted(ITEM_PREFIXES.items()))
def test_every_kind_of_item_has_its_prefix(type_: str, prefix: str) -> None:
    assert item_prefix(type_) == prefix


def test_an_unknown_item_type_has_the_prefix_item() -> None:
    assert item_prefix("acme:search") == "item"


@pytest.mark.parametrize("identifier", ["resp_1", "a", "A-b_9", "x" * 128])
def test_well_formed_ids_are_accepted(identifier: str) -> None:
    assert is_well_formed(identifier)


@pytest.mark.parametrize("identifier", ["", "x" * 129, "a b", "a/b", "a\n", "é", "a.b", "../x", "a\x00"])
def test_malformed_ids_are_refused(identifier: str) -> None:
    assert not is_well_formed(identifier)


@pytest.mark.parametrize("source", [CountingIds(), RandomIds()])
def test_a_source_never_repeats_itself(source: IdSource) -> None:
    ids = [source.new("resp") for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(is_well_formed(identifier) and identifier.startswith("resp_") for identifier in ids)
