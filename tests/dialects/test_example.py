"""The dialect in the documentation works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outlive.core.errors import UpstreamFault
from tests.dialects.playback import Make, output, play, translate

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "add-a-dialect.md"


def example() -> Make:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names: dict[str, Make] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["ParrotTranslator"]


def test_the_parrot_speaks() -> None:
    events = play([b"Pretty ", b"Polly", b"finish"], make=example())
    assert output(events)[0]["content"][0]["text"] == "Pretty Polly"


@pytest.mark.parametrize("chunks", [[b"Pretty"], [b"error"]])
def test_a_parrot_that_breaks_off_is_a_fault(chunks: list[bytes]) -> None:
    with pytest.raises(UpstreamFault):
        translate(chunks, make=example())
