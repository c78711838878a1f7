"""helios inspect CORE: model, programs, buffers, pages, sizes, signer."""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from helios_dod.contract.manifest import describe_buffer
from helios_dod.contract.prepared import PreparedContract
from helios_dod.contract.wire import contract_pb2, core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.acceptance import refusal
from helios_dod.cores.reader import Core, open_core
from helios_dod.progress import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("core", type=Path, metavar="CORE", help="a core's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints the core. Its signature and resources are verified; its weights are not read."""
    core = open_core(args.core)
    manifest = core.manifest()
    report = describe(core, manifest, core.prepared(manifest))
    print(json.dumps(report, indent=1) if args.json else "\n".join(lines(report)))
    return 0


def describe(
    core: Core, manifest: wire.ExecutionManifest, prepared: PreparedContract,
) -> dict[str, Any]:
    """Everything that is shown, as JSON values. Sizes are in bytes."""
    return {
        "path": str(core.path),
        "carrier": core.carrier,
        "format_version": core.body.format_version,
        "contract_version": prepared.version,
        "model": _describe_model(prepared),
        "signer": {
            "namespace": core.namespace,
            "public_key": core.public_key.hex(),
            "accepted": refusal(core) is None,
            "license_sha256": hashlib.sha256(core.license_text.encode()).hexdigest(),
            "license_first_line": (core.license_text.strip().splitlines() or [""])[0],
        },
        "cache": {
            "page_tokens": prepared.cache.page_tokens,
            "page_bytes": prepared.cache.page_bytes,
            "prepared_pages": prepared.pages,
            "regions": [{
                "kind": contract_pb2.HistoryKind.Name(region.kind).lower(),
                "planes": len(region.planes), "window_tokens": region.window_tokens,
                "page_group": region.page_group} for region in prepared.cache.regions],
        },
        "programs": [{
            "name": program.name, "operation": wire.Operation.Name(program.operation).lower(),
            "B": program.batch, "D": program.drafts, "W": program.width, "P": program.packed,
            "bindings": len(program.bindings), "operations": _steps(manifest, i),
            "pending": "host" if program.host_pending else
                       "device" if program.device_pending else "none",
        } for i, program in enumerate(prepared.programs)],
        "buffers": [describe_buffer(buffer) for buffer in manifest.buffers],
        "buffer_kinds": _count_kinds(manifest),
        "resources": [
            {"id": resource.id, "kind": core_pb2.ResourceKind.Name(resource.kind).lower(),
             "stored": resource.stored.nbytes, "decoded": resource.decoded_nbytes}
            for resource in core.body.executables
        ] + [{"id": weight.id, "kind": "weights", "stored": weight.nbytes, "decoded": weight.nbytes}
             for weight in core.body.weights],
    }


def _describe_model(prepared: PreparedContract) -> dict[str, Any]:
    sampling = {name: value for name, value in vars(prepared.sampling).items() if value is not None}
    return {
        "id": prepared.served_id, "aliases": list(prepared.aliases),
        "cache_identity": prepared.cache_identity, "vocabulary": prepared.vocabulary,
        "context_tokens": prepared.context_tokens, "prefill_tokens": prepared.prefill_tokens,
        "concurrency": prepared.concurrency, "eos_tokens": list(prepared.frontend.eos_tokens),
        "sampling": sampling,
    }


def _steps(manifest: wire.ExecutionManifest, index: int) -> int:
    """Operations, or device nodes, of a program."""
    program = manifest.programs[index]
    if program.WhichOneof("code") == "cuda_body":
        return len(manifest.cuda_bodies[program.cuda_body].nodes)
    return len(manifest.host_bodies[program.body].operations)


def _count_kinds(manifest: wire.ExecutionManifest) -> dict[str, int]:
    counts: dict[str, int] = {}
    for buffer in manifest.buffers:
        kind = wire.BufferKind.Name(buffer.kind).lower()
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def lines(report: dict[str, Any]) -> list[str]:
    """The report for a person."""
    model, signer, cache = report["model"], report["signer"], report["cache"]
    names = ", ".join([model["id"], *model["aliases"]])
    sampling = ", ".join(f"{name} {value:g}" for name, value in model["sampling"].items())
    rows = [
        ("model", names),
        ("context", f"{model['context_tokens']} tokens, prefill {model['prefill_tokens']}, "
                    f"concurrency {model['concurrency']}"),
        ("vocabulary", f"{model['vocabulary']}, EOS {model['eos_tokens']}"),
        ("sampling", sampling or "no defaults"),
        ("signer", f"{signer['namespace']}, "
                   f"{'accepted' if signer['accepted'] else 'not accepted'}, "
                   f"key {signer['public_key'][:16]}..."),
        ("licence", signer["license_first_line"] or "none given"),
        ("versions", f"{report['carrier']} core"
                     + (f", format {report['format_version']}" if report["format_version"] else "")
                     + f", contract {report['contract_version']}"),
        ("pages", f"{cache['page_tokens']} tokens, {format_bytes(cache['page_bytes'])}, "
                  f"{cache['prepared_pages']} prepared"),
        ("buffers", ", ".join(f"{count} {kind}" for kind, count in report["buffer_kinds"].items())),
    ]
    text = [f"{name:<11} {value}" for name, value in rows]
    text += ["", *table(("resource", "stored", "decoded"), [
        (part["id"], format_bytes(part["stored"]), format_bytes(part["decoded"]))
        for part in report["resources"]])]
    text += ["", *table(("program", "operation", "B", "D", "W", "P", "pending", "operations"), [
        tuple(str(program[key]) for key in (
            "name", "operation", "B", "D", "W", "P", "pending", "operations"))
        for program in report["programs"]])]
    return text


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their longest cell; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    text = []
    for row in (heads, *rows):
        cells = [cell.rjust(width) if i and cell[:1].isdigit() else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        text.append("  ".join(cells).rstrip())
    return text
