"""Outlive: a Responses + Conversations server whose responses outlive the connection, the process and the node."""

__version__ = "0.1.0"
