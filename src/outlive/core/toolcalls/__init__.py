"""Calls of the server's own tools as events and items. Pure."""
