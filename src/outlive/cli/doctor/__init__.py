"""The command `outlive doctor`."""
