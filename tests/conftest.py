"""Settings that hold for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.support.server import search_path

# No deadlines: how long one example takes says more about the machine's other work than about the code.
settings.register_profile("outlive", deadline=None)
settings.load_profile("outlive")

# Programs that tests start import the source beside the tests, whatever is installed.
os.environ["PYTHONPATH"] = search_path(os.environ.get("PYTHONPATH"))
