"""Responses upstreams."""
