"""Agents as models: what each kind of agent needs to be told a request, and to tell what it does."""
