"""Trains the dictionary that rows of journals are compressed with, `src/outlive/storage/frames.dict`.

Rows are opened with the dictionary that they were written with: a new one would need a journal format of its own.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import zstandard

from outlive.clock import RandomIds
from outlive.core.events import Channel
from outlive.core.grammar import DELTAS, OUTPUT_TEXT

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc", "mcp_call": "mcp"}
SAMPLES = 4000
SIZE = 4096


def main(texts: list[Path], target: Path) -> None:
    words = [word for text in texts for word in re.findall(r"\s?[A-Za-z]+|[.,:;()`*\n-]+", text.read_text())]
    ids, chance = RandomIds(), random.Random(1)
    samples = []
    for _ in range(SAMPLES):
        name, text = chance.choice([*DELTAS.items(), *[(OUTPUT_TEXT.delta, OUTPUT_TEXT)] * 12])
        channel = Channel(text, ids.new(PREFIXES[text.item]), chance.choice((0, 0, 0, 1, 1, 2, 3))).renamed(name)
        first = chance.randrange(2000)
        numbers = range(first, first + chance.choice((1, 1, 1, 1, 2, 4)))
        samples.append(b"".join(channel.frame(number, chance.choice(words)) for number in numbers))
    target.write_bytes(zstandard.train_dictionary(SIZE, samples).as_bytes())


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[2:]], Path(sys.argv[1]))
