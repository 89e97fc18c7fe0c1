"""Configuration: the settings, their sources, and what they refer to."""
