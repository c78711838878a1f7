"""Where this user's files live: caches that can be made again, and settings that cannot."""

import os
from pathlib import Path


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
