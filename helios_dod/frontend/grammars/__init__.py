"""Structured output: what a request says becomes one grammar of the whole output."""
