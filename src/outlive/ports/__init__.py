"""Ports: the protocols through which the engine reaches databases, models, tools and clocks."""
