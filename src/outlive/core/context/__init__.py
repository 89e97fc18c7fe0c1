"""The context a model is given: assembled, estimated, truncated, compacted. Pure."""
