"""The attacker, a process of its own.

python -m tests.siege.attacker NAME --port PORT --key KEY --upstream PORT --seconds N
"""

from __future__ import annotations

import argparse

from tests.siege import attacks, ordinary_attacks
from tests.siege.target import ATTACKS, Target

__all__ = ["ATTACKS"]
MODULES = (attacks, ordinary_attacks)  # each adds to the list


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    ATTACKS[given.name](Target(given.port, given.key, given.upstream, given.seconds))


if __name__ == "__main__":
    main()
