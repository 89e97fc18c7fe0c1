"""One run: from its claim to its terminal event."""
