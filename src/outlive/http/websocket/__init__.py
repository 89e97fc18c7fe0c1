"""WebSocket mode."""
