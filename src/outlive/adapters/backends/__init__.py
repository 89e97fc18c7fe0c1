"""Upstreams that answer: one file per dialect."""
