"""Where this user's files live: caches that can be made again, and settings that cannot."""

import os
from argparse import ArgumentTypeError
from pathlib import Path


def named_path(text: str) -> Path:
    """A path of the command line; an empty one would be this folder."""
    if not text:
        raise ArgumentTypeError("expected a path, got an empty text")
    return Path(text)


def cache_home() -> Path:
    """The user's cache folder of this product: $HELIOS_CACHE, else $XDG_CACHE_HOME/helios."""
    return _home("HELIOS_CACHE", "XDG_CACHE_HOME", ".cache")


def config_home() -> Path:
    """The user's settings folder of this product: $HELIOS_CONFIG, else $XDG_CONFIG_HOME/helios."""
    return _home("HELIOS_CONFIG", "XDG_CONFIG_HOME", ".config")


def _home(own: str, shared: str, default: str) -> Path:
    chosen = os.environ.get(own)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get(shared) or Path.home() / default) / "helios"
