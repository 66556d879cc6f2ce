"""Trifolium: block-diffusion language models for agents."""

__version__ = "0.1.0.dev0"
