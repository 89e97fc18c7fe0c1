"""Settings that hold for all tests."""

from __future__ import annotations

from hypothesis import settings

# No deadlines: how long one example takes says more about the machine's other work than about the code.
settings.register_profile("outlive", deadline=None)
settings.load_profile("outlive")
