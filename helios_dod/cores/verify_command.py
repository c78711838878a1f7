"""helios verify CORE: every signature, digest and contract check. Status 1 names what fails."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from helios_dod.cores.acceptance import refusal
from helios_dod.cores.padding import check_padding
from helios_dod.cores.reader import Core, open_core
from helios_dod.progress import Progress, format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("core", type=Path, metavar="CORE", help="a core's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Verifies all of it, whoever published it. Raises what does not hold."""
    began = time.monotonic()
    core = open_core(args.core)
    report = verify(core) | {"seconds": round(time.monotonic() - began, 3)}
    if args.json:
        print(json.dumps(report, indent=1))
        return 0
    print(f"{args.core}: verified: {report['carrier']} core of {report['namespace']}, contract "
          f"version {report['contract_version']}, {report['resources']} resources, "
          f"{format_bytes(report['weight_bytes'])} of weights, in {report['seconds']:.2f} s")
    if not report["accepted"]:
        print(f"its publisher is not accepted yet: --accept {report['namespace']}")
    return 0


def verify(core: Core) -> dict[str, Any]:
    """Reads and checks everything. Raises CoreError, ContractError."""
    manifest = core.manifest()
    prepared = core.prepared(manifest)
    core.tokenizer()
    core.chat_template()
    core.token_bytes()
    total = sum(weight.nbytes for weight in core.body.weights)
    with Progress(f"verifying {core.path.name}", total) as progress:
        weights = core.weights(progress=progress)
    check_padding(manifest, weights)
    return {
        "path": str(core.path), "carrier": core.carrier, "namespace": core.namespace,
        "public_key": core.public_key.hex(), "contract_version": prepared.version,
        "resources": len(core.resources), "weight_bytes": total,
        "accepted": refusal(core) is None,
    }
