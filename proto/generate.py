"""Generates helios_dod/contract/wire from proto/*.proto, or with --check compares them.

protoc writes absolute imports of sibling modules; they are rewritten to the package here. Stubs
(.pyi) are generated too, so that the type checker sees every message.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
WIRE = PROTO.parent / "helios_dod" / "contract" / "wire"


def generate(out: Path) -> dict[str, str]:
    """File name -> source, written to `out`."""
    sources = sorted(str(path) for path in PROTO.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={out}",
               f"--pyi_out={out}"]
    subprocess.run(command + sources, check=True)
    modules = {}
    for path in sorted(out.glob("*_pb2.py*")):
        text = re.sub(
            r"^import (\w+_pb2) as", r"from helios_dod.contract.wire import \1 as",
            path.read_text(), flags=re.M,
        )
        path.write_text(text)
        modules[path.name] = text
    return modules


def main() -> int:
    """Writes the modules, or reports drift with exit status 1."""
    if "--check" not in sys.argv:
        generate(WIRE)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
    stale = [name for name, text in fresh.items()
             if not (WIRE / name).exists() or (WIRE / name).read_text() != text]
    if stale:
        print("generated modules differ from proto/: " + ", ".join(stale) + "; run `make proto`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
