"""Delivery: from a run to the journal and on to its readers."""
