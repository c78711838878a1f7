"""Helios DOD: an LLM serving engine whose scheduler is tables and jitted systems."""

__version__ = "0.1.0"
