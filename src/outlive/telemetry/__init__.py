"""Telemetry: what operators see of a running server."""
