"""helios verify CORE: every signature, digest, contract and frontend check. Status 1 names what
fails."""

import argparse
import json
import time

from helios_dod.cores.acceptance import hint, refusal
from helios_dod.cores.reader import open_core
from helios_dod.errors import printable
from helios_dod.folders import named_path
from helios_dod.progress import Progress, format_bytes
from helios_dod.server.verification import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("core", type=named_path, metavar="CORE", help="a core's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Verifies all of it, whoever published it. Raises what does not hold."""
    began = time.monotonic()
    core = open_core(args.core)
    weight_nbytes = sum(weight.nbytes for weight in core.body.weights)
    with Progress(f"verifying {core.path.name}", weight_nbytes) as progress:
        verified = verify(core, progress)
    report = {
        "path": str(core.path), "carrier": core.carrier, "namespace": core.namespace,
        "public_key": core.public_key.hex(), "contract_version": verified.contract.version,
        "resources": len(core.resources),
        "weight_bytes": weight_nbytes,
        "accepted": refusal(core) is None, "prompt_tokens": verified.prompt_count,
        "chat_refusal": verified.refusal, "seconds": round(time.monotonic() - began, 3),
    }
    if args.json:
        print(json.dumps(report, indent=1))
        return 0
    print(f"{args.core}: verified: {report['carrier']} core of {report['namespace']}, contract "
          f"version {report['contract_version']}, {report['resources']} resources, "
          f"{format_bytes(weight_nbytes)} of weights, in {report['seconds']:.2f} s")
    if not report["accepted"]:
        print(f"its publisher is not accepted yet: {hint(core.namespace)}")
    if verified.refusal:
        print(f"it refuses a plain conversation: {printable(verified.refusal)}")
    return 0
