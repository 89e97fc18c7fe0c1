"""`make fuzz`: a long campaign on both databases, another every time, until enough was tried or an error is found."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.campaign import Tally
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer

PART_SECONDS = 30

Run = Callable[[OutliveServer, int], Tally]
PARTS: dict[str, Run] = {
    "schemathesis, coverage": lambda server, number: campaign.run_document(
        server, PART_SECONDS, "coverage", number=number
    ),
    "schemathesis, fuzzing": lambda server, number: campaign.run_document(
        server, PART_SECONDS, "fuzzing", "stateful", number=number
    ),
    "bodies and items": lambda server, number: campaign.run_bodies(server, PART_SECONDS, number=number),
    "items of any content": lambda server, number: campaign.run_items(server, PART_SECONDS, number=number),
    "frames on a WebSocket": lambda server, number: campaign.run_frames(server, PART_SECONDS, number=number),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None, help="what a run before this one printed")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}, {given.cases} cases")
    tried = found = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            campaign.start_server(folder / "sqlite") as on_sqlite,
            campaign.start_server(folder / "postgres", DATABASES.create()) as on_postgres,
        ):
            while tried < given.cases and not found:
                for database, server in (("SQLite", on_sqlite), ("Postgres", on_postgres)):
                    for part, run in PARTS.items():
                        tally = run(server, seed)
                        print(f"{part} on {database}: {tally}", *tally.found, sep="\n", flush=True)
                        tried, found = tried + tally.tried, found + len(tally.found)
                seed += 1
    print(f"{tried} cases tried, {found} found wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
