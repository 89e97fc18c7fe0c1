"""What the server tells about itself at /openapi.json: every route, what it takes and what it answers."""
