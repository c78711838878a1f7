"""What a core holds, as JSON values and as lines for a person."""

import hashlib
from typing import Any

from helios_dod.contract.manifest import describe_buffer
from helios_dod.contract.prepared import PreparedContract
from helios_dod.contract.wire import contract_pb2, core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.acceptance import refusal
from helios_dod.cores.reader import Core
from helios_dod.progress import format_bytes


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
        "cache": _describe_cache(manifest, prepared),
        "code": _describe_code(manifest),
        "speculative_widths": list(prepared.speculative_widths),
        "programs": [{
            "name": program.name, "operation": wire.Operation.Name(program.operation).lower(),
            "B": program.batch, "D": program.drafts, "W": program.width, "P": program.packed,
            "lane_limit": program.lane_limit, "confidence_width": program.confidence_width,
            "state_rows": program.state_rows_per_request, "bindings": len(program.bindings),
            "operations": _steps(manifest, i),
            "pending": "host" if program.host_pending else
                       "device" if program.device_pending else "none",
            "tuned": [{"buffer": manifest.buffers[buffer].name, "producer": producer}
                      for buffer, producer in program.tuned],
        } for i, program in enumerate(prepared.programs)],
        "tuning": [{
            "name": graph.name, "body": "cuda" if graph.device_body else "host",
            "outputs": [manifest.buffers[output].name for output in graph.outputs],
        } for graph in prepared.tuning],
        "ranks": [{"rank": rank.rank, "weights": list(rank.weights), "modules": list(rank.modules)}
                  for rank in prepared.ranks],
        "staging_tables": [{
            "name": table.name, "buffer": manifest.buffers[table.buffer].name,
            "frames": table.frames, "consumer_ranks": list(table.consumer_ranks),
        } for table in prepared.staging_tables],
        "vision": None if prepared.vision is None else {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(prepared.vision).items()},
        "frontend": _describe_frontend(prepared),
        "buffers": [describe_buffer(buffer) for buffer in manifest.buffers],
        "buffer_kinds": _count_kinds(manifest),
        "resources": [
            {"id": resource.id, "kind": core_pb2.ResourceKind.Name(resource.kind).lower(),
             "stored": resource.stored.nbytes, "decoded": resource.decoded_nbytes}
            for resource in core.body.executables
        ] + [{"id": weight.id, "kind": "weights", "stored": weight.nbytes, "decoded": weight.nbytes}
             for weight in core.body.weights],
    }


def _describe_cache(
    manifest: wire.ExecutionManifest, prepared: PreparedContract,
) -> dict[str, Any]:
    cache = prepared.cache
    return {
        "page_tokens": cache.page_tokens, "page_bytes": cache.page_bytes,
        "prepared_pages": prepared.pages, "snapshots": prepared.snapshots,
        "cursor_lag_tokens": cache.cursor_lag_tokens,
        "regions": [{
            "kind": contract_pb2.HistoryKind.Name(region.kind).lower(),
            "planes": len(region.planes), "compression_ratio": region.compression_ratio,
            "window_tokens": region.window_tokens, "page_group": region.page_group,
        } for region in cache.regions],
        "page_tables": [{
            "buffer": manifest.buffers[table.buffer].name, "page_offset": table.page_offset,
            "page_group": table.page_group} for table in cache.tables],
    }


def _describe_code(manifest: wire.ExecutionManifest) -> dict[str, Any]:
    """What programs are made of. nodes: of one graph of every program."""
    targets = {program.WhichOneof("code") == "cuda_body" for program in manifest.programs}
    return {
        "targets": sorted("cuda" if device else "host" for device in targets),
        "architectures": sorted({f"sm_{module.architecture}" for module in manifest.modules
                                 if module.architecture}),
        "modules": len(manifest.modules),
        "module_bytes": sum(len(module.cubin) for module in manifest.modules),
        "graphs": sum(program.WhichOneof("code") == "cuda_body" for program in manifest.programs),
        "nodes": sum(_steps(manifest, i) for i, program in enumerate(manifest.programs)
                     if program.WhichOneof("code") == "cuda_body"),
    }


def _describe_frontend(prepared: PreparedContract) -> dict[str, Any]:
    frontend, image = prepared.frontend, prepared.frontend.image
    return {
        "tool_syntax": contract_pb2.ToolSyntax.Name(frontend.tool_syntax).lower(),
        "reasoning_syntax": contract_pb2.ReasoningSyntax.Name(frontend.reasoning_syntax).lower(),
        "output": None if frontend.output is None else frontend.output.plain(),
        "text_decoding": contract_pb2.TextDecoding.Name(frontend.text_decoding).lower(),
        "strip_leading_space": frontend.strip_leading_space,
        "bos_token": frontend.bos_token if frontend.add_bos else None,
        "template_tokens": dict(frontend.template_tokens),
        "prefix_boundaries": [{
            "roles": list(boundary.roles),
            "constraint": boundary.constraint,
        } for boundary in frontend.prefix_boundaries],
        "image": None if image is None else {
            "preparation": image.preparation, "layout": image.layout,
            "filter": image.resize_filter, "order": image.patch_order,
            "feature_tokens": list(image.feature_tokens), "patch": image.patch,
            "pixels_min": image.pixels_min, "pixels_max": image.pixels_max,
            "tensors": list(image.tensors)},
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
    model, signer = report["model"], report["signer"]
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
        *_cache_rows(report["cache"]),
        *_device_rows(report),
        *_frontend_rows(report["frontend"], report["vision"]),
        ("buffers", ", ".join(f"{count} {kind}" for kind, count in report["buffer_kinds"].items())),
    ]
    text = [f"{name:<11} {value}" for name, value in rows]
    text += ["", *table(("resource", "stored", "decoded"), [
        (part["id"], format_bytes(part["stored"]), format_bytes(part["decoded"]))
        for part in report["resources"]])]
    columns = {"program": "name", "operation": "operation", "B": "B", "D": "D", "W": "W", "P": "P",
               "lane": "lane_limit", "rows": "state_rows", "pending": "pending",
               "operations": "operations"}
    text += ["", *table(tuple(columns), [
        tuple(str(program[key]) for key in columns.values()) for program in report["programs"]])]
    return text


def _cache_rows(cache: dict[str, Any]) -> list[tuple[str, str]]:
    """Pages, histories, page-table views and snapshots."""
    regions = [
        f"{region['kind']} in {region['planes']} planes"
        + (f", {region['compression_ratio']} tokens a record"
           if region["compression_ratio"] > 1 else "")
        + (f", window {region['window_tokens']}" if region["window_tokens"] else "")
        + (f", group {region['page_group']}" if region["page_group"] else "")
        for region in cache["regions"]]
    views = [f"{view['buffer']} {view['page_offset']:+d}"
             + (f", group {view['page_group']}" if view["page_group"] else "")
             for view in cache["page_tables"]]
    return [
        ("pages", f"{cache['page_tokens']} tokens, {format_bytes(cache['page_bytes'])}, "
                  f"{cache['prepared_pages']} prepared"),
        ("histories", "; ".join(regions) or "none"),
        ("page tables", "; ".join(views) or "none"),
        ("snapshots", f"{cache['snapshots']}, cursor lag {cache['cursor_lag_tokens']} tokens"),
    ]


def _device_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Code, speculation, tuning, ranks and staging tables."""
    code = report["code"]
    target = ", ".join([*code["targets"], *code["architectures"]])
    made = (f", {code['graphs']} graphs of {code['nodes']} nodes, {code['modules']} modules of "
            f"{format_bytes(code['module_bytes'])}") if code["graphs"] else ""
    ranks = [f"{rank['rank']}: " + ", ".join([*rank["weights"], *rank["modules"]])
             for rank in report["ranks"]]
    tuning = [f"{graph['name']} fills {', '.join(graph['outputs'])}" for graph in report["tuning"]]
    staged = [f"{table['name']} in {table['frames']} frames" for table in report["staging_tables"]]
    widths = ", ".join(map(str, report["speculative_widths"]))
    return [
        ("code", target + made),
        ("widths", f"speculative {widths}" if widths else "1, nothing speculative"),
        ("tuning", "; ".join(tuning) or "none"),
        ("ranks", "; ".join(ranks) or "one, which loads everything"),
        ("staging", "; ".join(staged) or "no tables"),
    ]


def _frontend_rows(
    frontend: dict[str, Any], vision: dict[str, Any] | None,
) -> list[tuple[str, str]]:
    """Output syntax, text and images."""
    image = frontend["image"]
    shown = "none" if vision is None or image is None else (
        f"{vision['feature_slots']} slots, {vision['features_per_window']} features a window, "
        f"patches {', '.join(map(str, vision['patch_capacities']))}, "
        f"{image['layout']} after {image['preparation']}")
    boundaries = [f"{'/'.join(part['roles'])} {part['constraint']}"
                  for part in frontend["prefix_boundaries"]]
    return [
        ("syntax", f"tools {frontend['tool_syntax']}, reasoning {frontend['reasoning_syntax']}"),
        ("text", frontend["text_decoding"]),
        ("boundaries", "; ".join(boundaries) or "none"),
        ("images", shown),
    ]


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their longest cell; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    text = []
    for row in (heads, *rows):
        cells = [cell.rjust(width) if i and cell[:1].isdigit() else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        text.append("  ".join(cells).rstrip())
    return text
