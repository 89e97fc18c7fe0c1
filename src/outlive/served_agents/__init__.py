"""Agents of users, run as models."""
