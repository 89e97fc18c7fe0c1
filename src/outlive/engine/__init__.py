"""All waiting: admission, running, committing, reading, sweeping."""
