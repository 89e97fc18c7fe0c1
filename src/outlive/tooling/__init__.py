"""The server's own tools."""
