"""Where compiled code is kept, and under what name.

numba's own disk cache serves stale code when a callee or a constant in another file changed, keys
files by their path and time, and lets two processes that compile one function for two worlds write
over each other. Here an entry is one file, named by what the code was made from: the sources that
its module imports, directly or not, the flags, the signature and the processor. So an edit compiles
again just what depends on it, checkouts share what they have in common, and writers never meet.
"""

import hashlib
import inspect
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from helios_dod.folders import cache_home

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
NAME = PACKAGE.name
IMPORTS = re.compile(
    rf"^[ \t]*(?:from[ \t]+({NAME}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)"
    rf"|import[ \t]+({NAME}[\w.]*))", re.MULTILINE)
DIGEST_LETTERS = 32


@cache
def _module_file(module: str) -> Path | None:
    """The source of a module of the package."""
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _imported(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """A source, and the sources of the package that it imports; packages on the way included."""
    source = path.read_bytes()
    found: dict[Path, None] = {}
    for parent, names, plain in IMPORTS.findall(source.decode()):
        module = parent or plain
        modules = [module] + [f"{module}.{name}" for name in re.findall(r"\w+", names)]
        parts = module.split(".")
        modules += [".".join(parts[:count]) for count in range(1, len(parts))]
        for candidate in modules:
            file = _module_file(candidate)
            if file is not None:
                found[file] = None
    return source, tuple(found)


@cache
def sources_digest(path: Path) -> str:
    """Hex digest of a source of the package and of everything that it imports from the package."""
    reached, left = {path}, [path]
    while left:
        for file in _imported(left.pop())[1]:
            if file not in reached:
                reached.add(file)
                left.append(file)
    digest = hashlib.sha256()
    for file in sorted(reached):
        digest.update(_told(file))
    return digest.hexdigest()


@cache
def _told(file: Path) -> bytes:
    """What a digest is told of a source: its name and what it holds."""
    return file.relative_to(ROOT).as_posix().encode() + hashlib.sha256(_imported(file)[0]).digest()


@cache
def _outside_digest(path: Path) -> str:
    """For a function outside the package: its folder's sources and the whole package."""
    digest = hashlib.sha256()
    for file in sorted(path.parent.glob("*.py")) + sorted(PACKAGE.rglob("*.py")):
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


class _Files:
    """Entries of one function, one file each; the names come from the keys."""

    def __init__(self, folder: Path, name: str, stamp: str) -> None:
        self.folder, self.name, self.stamp = folder, name, stamp

    def _path(self, key: Any) -> Path:
        # A key names every type by its full layout, the target and the function's own bytes.
        told = hashlib.sha256(f"{self.stamp} {key}".encode()).hexdigest()[:DIGEST_LETTERS]
        return self.folder / f"{self.name}-{told}.code"

    def load(self, key: Any) -> Any:
        """The entry, or None. A file that cannot be read as one is an absent one."""
        try:
            return caching.pickle.loads(self._path(key).read_bytes())
        except (OSError, EOFError, caching.pickle.UnpicklingError):
            return None

    def save(self, key: Any, data: Any) -> None:
        """Writes beside, then renames: a reader sees the whole entry or none."""
        path = self._path(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        fresh.write_bytes(caching.dumps(data))
        fresh.replace(path)


class _Locator:
    """What numba asks of a place for entries."""

    def __init__(self, folder: Path, file: str) -> None:
        self.folder, self._py_file = folder, file

    def get_cache_path(self) -> str:
        return str(self.folder)

    def ensure_cache_path(self) -> None:
        """`save` makes the folder."""


class _Implementation(caching.CompileResultCacheImpl):
    """Serialises as numba does; the place is ours."""

    def __init__(self, function: Callable, locator: _Locator) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = locator


class CodeCache(caching.FunctionCache):
    """The cache of one jitted function. flags: everything else that changes its code."""

    def __init__(self, function: Callable, flags: str) -> None:
        file = Path(inspect.getfile(function)).resolve()
        inside = file.is_relative_to(PACKAGE)
        sources = sources_digest(file) if inside else _outside_digest(file)
        module = file.relative_to(PACKAGE).with_suffix("").as_posix() if inside else file.stem
        folder = cache_home() / "code" / module.replace("/", ".")
        stamp = f"{numba.__version__} {flags} {sources} {function.__code__.co_firstlineno}"
        self._name = repr(function)
        self._py_func = function
        self._impl = _Implementation(function, _Locator(folder, str(file)))
        self._cache_path = str(folder)
        name = re.sub(r"\W", "", function.__qualname__)
        self._cache_file = _Files(folder, name, stamp)
        self.enable()
