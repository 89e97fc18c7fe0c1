"""What the engine needs from the outside world, as small protocols."""
