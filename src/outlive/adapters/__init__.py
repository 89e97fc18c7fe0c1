"""The outside world: databases and upstreams, each behind a port."""
