"""The demo: five public bug reports, reproduced in the terminal against a real server process."""
