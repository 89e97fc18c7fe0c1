"""The ports in memory, for `store: false` and for tests."""
