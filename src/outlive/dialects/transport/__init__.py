"""HTTP to upstreams."""
