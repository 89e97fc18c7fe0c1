"""Chat Completions upstreams."""
