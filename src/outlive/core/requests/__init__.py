"""Requests and items as callers send them: parsed, checked, described. Pure."""
