"""`make fuzz`: a long campaign, different every time, until the time is over or something is found."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.campaign import Tally
from tests.support.server import OutliveServer


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="what a run before this one printed")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    share = max(int(given.minutes * 60 / 4), 1)
    print(f"seed {seed}, {share} s for each part")
    parts: dict[str, Callable[[OutliveServer], Tally]] = {
        "schemathesis, coverage": lambda server: campaign.run_document(server, share, "coverage", number=seed),
        "schemathesis, fuzzing": lambda server: campaign.run_document(
            server, share, "fuzzing", "stateful", number=seed
        ),
        "bodies and items": lambda server: campaign.run_bodies(server, share, number=seed),
        "frames on a WebSocket": lambda server: campaign.run_frames(server, share, number=seed),
    }
    tried = found = 0
    with tempfile.TemporaryDirectory() as folder, campaign.start_server(Path(folder)) as server:
        for name, run in parts.items():
            tally = run(server)
            print(f"{name}: {tally}", flush=True)
            print("\n".join(tally.found), flush=True)
            tried, found = tried + tally.tried, found + len(tally.found)
    print(f"{tried} cases tried, {found} found wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
