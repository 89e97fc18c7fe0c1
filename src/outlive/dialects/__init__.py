"""Upstream dialects: one folder each, with its pure translator and its backend."""
