"""Agents served as models."""
