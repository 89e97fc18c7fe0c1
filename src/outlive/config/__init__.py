"""Configuration: settings, where they come from, and what they name."""
