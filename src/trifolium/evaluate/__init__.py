"""Measuring: speed of the decoding modes on the same prompts."""
