"""`helios serve [CORE]`."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios_dod.errors import UserError
from helios_dod.folders import named_path
from helios_dod.limits import SIZES
from helios_dod.server.settings import Sections, api_keys, settle

if TYPE_CHECKING:
    from helios_dod.contract.errors import ContractError
    from helios_dod.frontend.assets import Assets
    from helios_dod.runtime.engine_process import Planner
    from helios_dod.runtime.native_model import Opened, Plan
    from helios_dod.runtime.selection import Options, SelectionError
    from helios_dod.server.options import ServeOptions
    from helios_dod.simulation.serving import Planner as SimulatedPlanner

BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SELECTION_FLAGS = {"concurrency": "--max-active", "context_tokens": "--context",
                   "cache_bytes": "--cache-memory", "snapshots": "--snapshots",
                   "size": "--limits",
                   "offload_bytes": "--offload-memory", "disk_folder": "--offload-disk",
                   "disk_bytes": "--offload-disk-size",
                   "speculative_width": "--speculative-width",
                   "options.history_drafting": "--history-drafting"}
NUMBERS_MAX = {"drain_seconds": 86_400, "restart_engine": 1 << 20, "threads": 1024,
               "offload_memory": 1 << 50, "offload_disk_size": 1 << 60}
TIME_MAX = 1e6  # of --step-ms and --token-us
SIMULATED = "-simulated"  # ends the model's id where no model is computed


def byte_count(text: str) -> int:
    """Bytes from a number with an optional unit: 800M, 4G."""
    lowered = text.strip().lower().removesuffix("b").removesuffix("i")
    digits = lowered.rstrip("kmgt")
    try:
        return int(float(digits) * BYTE_UNITS[lowered[len(digits):]])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"expected bytes such as 800M or 4G, got {text!r}") from None


def positive_bytes(text: str) -> int:
    """The same, of at least one byte."""
    if (count := byte_count(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least one byte, got {text!r}")
    return count


def positive(text: str) -> int:
    """A number of at least 1; who wants the default leaves the option out."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if not 1 <= number <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"expected 1 to {sys.maxsize}, got {number}")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `helios serve`."""
    parser.usage = "helios serve [options] [CORE]"
    parser.epilog = (
        "Every option may also stand in the file of --config under its long name, or in a variable "
        "such as HELIOS_SERVE_MAX_ACTIVE=32. The command line wins, then variables, then the file.")
    declare(Sections(parser, bare=True))


def declare(sections: Sections) -> None:
    """Every option, in the order of the help."""
    sections.add("core", nargs="?", type=named_path, default=None,
                 help="a core folder; without one, the demo model, prepared once")
    sections.add("--config", type=named_path, metavar="FILE", default=None,
                 help="options from a YAML or TOML file")
    declare_listener(sections)
    declare_admission(sections)
    declare_model(sections)
    declare_engine(sections)
    declare_operation(sections)


def declare_listener(sections: Sections) -> None:
    """Where the server listens and whom it answers."""
    sections.title("listening")
    add = sections.add
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=int, default=8000, help="0 takes any free port (default %(default)s)")
    add("--uds", type=named_path, metavar="PATH", default=None,
        help="listen on a Unix socket instead")
    add("--tls-cert", type=named_path, metavar="FILE", default=None,
        help="serve HTTPS with this certificate chain (PEM)")
    add("--tls-key", type=named_path, metavar="FILE", default=None, help="its private key (PEM)")
    add("--api-key", action="append", metavar="KEY", default=None,
        help="ask for this key; may be repeated. Other users see the command line: prefer the next "
             "option or HELIOS_SERVE_API_KEY")
    add("--api-key-file", type=named_path, metavar="FILE", default=None,
        help="ask for one of the keys in this file, one a line")
    add("--cors-origin", action="append", metavar="ORIGIN", default=None,
        help="let pages of this origin ask (* for all); may be repeated (default: none)")
    add("--max-body-bytes", type=byte_count, metavar="BYTES", default=8 << 20,
        help="largest request body (default 8M)")
    add("--remote-images", action="store_true", default=False,
        help="fetch images that requests name by an http(s) address, of public hosts only")
    add("--workers", type=positive, default=1, help="frontend processes (default %(default)s)")
    add("--no-ui", action="store_true", default=False, help="serve no page at /")


def declare_admission(sections: Sections) -> None:
    """How much may be in the server."""
    sections.title("admission")
    add = sections.add
    add("--max-active", type=positive, default=0, metavar="N",
        help="requests that run at once (default: as many as --limits allows)")
    add("--queue-capacity", type=positive, default=0, metavar="N",
        help="requests that may wait beyond those; more get 429 (default: as --limits allows)")
    add("--frontend-workers", type=positive, default=0, metavar="N",
        help="requests prepared at once, over all workers (default: two a worker)")
    add("--event-capacity", type=int, default=64, metavar="N",
        help="events that a slow reader's answer may hold at least; an answer's own budget may be "
             "larger (default %(default)s)")


def declare_model(sections: Sections) -> None:
    """What is served."""
    sections.title("model")
    add = sections.add
    add("--model-name", metavar="NAME", default=None, help="serve the model under this id")
    add("--context", type=positive, default=0, metavar="TOKENS",
        help="tokens of prompt and answer of one request (default: the core's)")
    add("--tool-syntax", metavar="NAME", default=None,
        help="how the model writes tool calls, or none (default: as the core says)")
    add("--reasoning-syntax", metavar="NAME", default=None,
        help="how the model writes reasoning, or none (default: as the core says)")
    add("--accept", metavar="NAMESPACE", default=None,
        help="accept the core's publisher and licence, named by its signed namespace")
    add("--trust-weights", action="store_true", default=False,
        help="do not compare the weights with their signed digests at start")
    add("--random-weights", action="store_true", default=False,
        help="make the matrices on the device instead of reading them, for measurements")


def declare_engine(sections: Sections) -> None:
    """How it runs."""
    sections.title("engine")
    add = sections.add
    add("--cache-memory", type=positive_bytes, default=0, metavar="BYTES",
        help="memory of the attention cache, such as 800M (default: chosen from what is free)")
    add("--snapshots", type=positive, default=0, metavar="N",
        help="places for snapshots of models with state beside their pages (default: chosen with "
             "the cache, in the proportion that the core was prepared with)")
    add("--offload-memory", type=byte_count, default=0, metavar="BYTES",
        help="host memory for cached pages that the cache has no room for (default: none)")
    add("--offload-disk", type=named_path, metavar="FOLDER", default=None,
        help="keep pages that this memory has no room for in a nameless file there")
    add("--offload-disk-size", type=byte_count, default=0, metavar="BYTES",
        help="size of that file; its blocks are reserved at start")
    add("--threads", type=positive, default=0, metavar="N",
        help="compute threads (default: one a processor)")
    add("--speculative-width", type=positive, default=0, metavar="W",
        help="load every captured speculative program up to this width, pending token included "
             "(default: the widths that the core selects)")
    add("--history-drafting", action="store_true", default=False,
        help="draft from a request's own text; the core's wider programs must take such drafts")
    add("--executor", choices=("core", "simulated"), default="core",
        help="what runs programs: the core's own device, or a simulated one that computes no model "
             "and answers with noise under an id that says so (default %(default)s)")
    add("--pace", choices=("real", "none"), default="real",
        help="of the simulated executor: programs take their time, or none (default %(default)s)")
    add("--step-ms", type=float, default=8.0, metavar="MS",
        help="time of a program of the simulated executor (default %(default)s)")
    add("--token-us", type=float, default=0.0, metavar="US",
        help="and of each of its tokens (default %(default)s)")
    add("--costs", type=named_path, metavar="FILE", default=None,
        help="times of its programs instead: what `perf fit` or `perf roofline` wrote")
    add("--record", type=named_path, metavar="FILE", default=None,
        help="keep the last ticks of the scheduler and write them when the engine ends, "
             "for `helios replay`; four earlier recordings stay beside it as FILE.1 to FILE.4")
    add("--record-ticks", type=positive, default=0, metavar="N",
        help="ticks to keep at most (default: 100000)")
    add("--limits", choices=[name for name in SIZES if name != "TEST_MIN"], default=None,
        help="capacity of the scheduler's tables (default: the smallest that fits)")


def declare_operation(sections: Sections) -> None:
    """What happens around it."""
    sections.title("operation")
    add = sections.add
    add("--log", choices=("text", "json", "off"), default="off",
        help="a line on standard error for each request, without content (default %(default)s)")
    add("--vllm-metrics", action="store_true", default=False,
        help="also export metrics under the vllm: names that dashboards know")
    add("--otlp", metavar="URL", default=None,
        help="send a trace of each request to this OpenTelemetry collector, such as "
             "http://127.0.0.1:4318 (needs the extra `otlp`)")
    add("--restart-engine", type=int, default=0, metavar="N",
        help="start a failed engine again, at most so often (default %(default)s: answer 503 with "
             "the cause)")
    add("--drain-seconds", type=int, default=30, metavar="S",
        help="at SIGTERM, time for running answers to finish (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT. Raises UserError."""
    from helios_dod.server.launch import Server, reserve

    args = settle(args, declare, os.environ)
    options = serve_options(args)
    held = reserve(options)  # before preparation, which may take long
    if args.core is None:
        from helios_dod.cores.demo import demo_core

        options = replace(options, core=demo_core())
    opened = opened_core(options.core, args.accept)
    options = replace(options, load_assets=partial(options.load_assets, opened=opened),
                      run_engine=partial(options.run_engine, opened=opened))
    return Server.start(fitted(options, args.limits, partial(plan_of(args), opened=opened)), held)


def opened_core(path: Path, namespace: str | None) -> "Opened":
    """The core, read once for the engine and every worker. Raises UserError."""
    from helios_dod.runtime.native_model import open_accepted

    try:
        return open_accepted(path, namespace)
    except ValueError as error:
        raise UserError(str(error)) from None


def plan_of(args: argparse.Namespace) -> Callable[..., "Plan"]:
    """How capacities are chosen, without a device."""
    if args.executor == "simulated":
        return simulated(args).plan
    from helios_dod.runtime.devices import plan_anywhere

    return plan_anywhere


def simulated(args: argparse.Namespace) -> "SimulatedPlanner":
    """The planner of the simulated executor. Raises UserError."""
    from helios_dod.executors.costs import FixedCost, read_costs
    from helios_dod.simulation.serving import Planner

    for name, value in (("--step-ms", args.step_ms), ("--token-us", args.token_us)):
        if not 0 <= value <= TIME_MAX:
            raise UserError(f"{name}: must be between 0 and {TIME_MAX:g}, got {value:g}")
    if args.costs is not None and args.pace == "none":
        raise UserError("--costs: goes with --pace real, got --pace none")
    if args.costs is not None:
        return Planner(read_costs(args.costs))
    if args.pace == "none":
        return Planner(FixedCost(0, 0))
    return Planner(FixedCost(round(args.step_ms * 1e6), round(args.token_us * 1e3)))


def fitted(options: "ServeOptions", limits_name: str | None,
           plan: Callable[[Path, "Options"], "Plan"]) -> "ServeOptions":
    """Options with every choice made that the core and this machine decide. Raises UserError, so
    that what does not fit is said before anything starts."""
    from helios_dod.contract.errors import ContractError
    from helios_dod.runtime.devices import needs_device
    from helios_dod.runtime.selection import SelectionError, selection_options

    try:
        made = plan(options.core, selection_options(options.engine, limits_name))
        chosen = made.selection
        engine = replace(options.engine, context_tokens=chosen.context_tokens)
        if not needs_device(made.contract):  # a device says what room it has once it is there
            cache_bytes = chosen.geometry.pages * chosen.page_bytes
            engine = replace(engine, cache_bytes=cache_bytes)
        return replace(options, engine=engine, limits_name=chosen.limits.name)
    except (SelectionError, ContractError) as error:
        raise by_flag(error) from None
    except ValueError as error:
        raise UserError(str(error)) from None


def by_flag(error: "SelectionError | ContractError") -> UserError:
    """The same error, of the flag that chooses the field."""
    flag = SELECTION_FLAGS.get(error.field, error.field)
    return UserError(flag + str(error).removeprefix(error.field))


def run_engine(*arguments: Any, opened: "Opened", planner: "Planner | None" = None) -> None:
    """runtime.engine_process.run, imported in the engine's process only."""
    from helios_dod.contract.errors import ContractError
    from helios_dod.runtime.devices import plan_for_device
    from helios_dod.runtime.engine_process import run as run_process
    from helios_dod.runtime.selection import SelectionError

    run: Callable[..., None] = run_process
    random = arguments[5].random_weights  # of the EngineOptions
    made: Callable[..., Any] = planner or partial(plan_for_device, random_weights=random)
    try:
        run(*arguments, planner=partial(made, opened=opened))
    except (SelectionError, ContractError) as error:  # what only a started engine can know
        raise by_flag(error) from None


def core_assets(*arguments: Any, **options: Any) -> "Assets":
    """server.bootstrap.load_assets, imported where workers are, which the engine starts before."""
    from helios_dod.server.bootstrap import load_assets

    return load_assets(*arguments, **options)


def simulated_assets(core: Path, load: Callable[..., "Assets"], opened: "Opened") -> "Assets":
    """The core's assets under an id that says that nothing is computed."""
    assets = load(core, opened=opened)
    return replace(assets, served_id=assets.served_id + SIMULATED, aliases=())


def tls_files(args: argparse.Namespace) -> tuple[Path, Path] | None:
    """Certificate and key, checked. Raises UserError."""
    if args.tls_cert is None and args.tls_key is None:
        return None
    if args.tls_cert is None or args.tls_key is None:
        raise UserError("--tls-cert and --tls-key go together")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(args.tls_cert, args.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"--tls-cert, --tls-key: {error}") from None
    return args.tls_cert, args.tls_key


def check_effects(args: argparse.Namespace) -> None:
    """Raises UserError for an option that could have no effect beside the others."""
    for names, effective, problem in (
            (("host", "port"), args.uds is None, "cannot be combined with --uds"),
            (("pace", "step_ms", "token_us", "costs"), args.executor == "simulated",
             "goes with --executor simulated, got --executor core"),
            (("random_weights",), args.executor == "core",
             "cannot be combined with --executor simulated, which computes no model"),
            (("speculative_width", "history_drafting"), args.executor == "core",
             "cannot be combined with --executor simulated, which runs no speculative programs"),
            (("record_ticks",), args.record is not None, "goes with --record, which is not given")):
        for name in names:
            if name in args.given and not effective:
                raise UserError(f"--{name.replace('_', '-')}: {problem}")


def check_record(path: Path) -> None:
    """Raises UserError unless a recording can be written there."""
    from helios_dod.recording import check_target

    try:
        check_target(path)
    except UserError as error:
        raise UserError(f"--record: {error}") from None


def serve_options(args: argparse.Namespace) -> "ServeOptions":
    """ServeOptions of the command line. Raises UserError."""
    from helios_dod.frontend.syntaxes import compose
    from helios_dod.runtime.options import EngineOptions
    from helios_dod.server.access import key_digest
    from helios_dod.server.options import ServeOptions
    from helios_dod.server.tracing import endpoint_of

    load: Callable[..., Assets] = partial(core_assets, tool_syntax=args.tool_syntax,
                                            reasoning_syntax=args.reasoning_syntax)
    served_id = args.model_name
    engine: Callable[..., None] = run_engine
    if args.executor == "simulated":
        load = partial(simulated_assets, load=load)
        served_id = served_id and served_id + SIMULATED
        engine = partial(run_engine, planner=simulated(args))
    compose(args.tool_syntax, args.reasoning_syntax)  # refuses unknown names at once
    check_effects(args)
    for name, high in NUMBERS_MAX.items():
        if not 0 <= getattr(args, name) <= high:
            raise UserError(f"--{name.replace('_', '-')}: must be between 0 and {high}, "
                            f"got {getattr(args, name)}")
    for name in ("host", "model_name"):
        if getattr(args, name) == "":
            raise UserError(f"--{name.replace('_', '-')}: must not be empty")
    if args.record is not None:
        check_record(args.record)
    if args.offload_disk is not None and not args.offload_disk.is_dir():
        raise UserError(f"--offload-disk: expected a folder, got {args.offload_disk}")
    try:
        return ServeOptions(
            core=args.core or Path(), load_assets=load, run_engine=engine,
            host=args.host, port=args.port, workers=args.workers,
            limits_name=args.limits or "LARGE", queue_capacity=args.queue_capacity,
            model_name=served_id, drain_seconds=args.drain_seconds,
            frontend_workers=args.frontend_workers, event_capacity=args.event_capacity,
            body_bytes_max=args.max_body_bytes, log=args.log, ui=not args.no_ui,
            key_digests=tuple(map(key_digest, api_keys(args))),
            cors_origins=tuple(args.cors_origin or ()), uds=args.uds,
            remote_images=args.remote_images, tls=tls_files(args),
            vllm_metrics=args.vllm_metrics,
            otlp=args.otlp and endpoint_of(args.otlp), restarts=args.restart_engine,
            engine=EngineOptions(
                max_active=args.max_active, context_tokens=args.context,
                cache_bytes=args.cache_memory, snapshots=args.snapshots, threads=args.threads,
                offload_bytes=args.offload_memory, disk_folder=args.offload_disk,
                disk_bytes=args.offload_disk_size,
                trust_weights=args.trust_weights or args.random_weights,
                random_weights=args.random_weights, speculative_width=args.speculative_width,
                history_drafting=args.history_drafting,
                record=args.record and args.record.absolute(), record_ticks=args.record_ticks))
    except ValueError as error:
        raise UserError(str(error)) from None
