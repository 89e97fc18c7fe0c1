"""Anthropic's Messages upstreams."""
