"""Tools that this server calls by itself."""
