"""Tool calls in replies, in the formats of the families of models."""
