"""Measures the engine, and any server that speaks its API."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from helios_dod.arguments import positive, seed, share, whole_number
from helios_dod.cli import INTERRUPTED
from helios_dod.errors import UserError
from helios_dod.perf import (
    bench,
    cancel,
    compare,
    fit,
    kernels,
    record,
    report,
    roofline,
    serve,
    simulate,
    start,
    streaming,
    validate,
)
from helios_dod.perf.machine import conditions, own_commit


def tick(options: argparse.Namespace) -> int:
    """Prints the cost of a tick for each number of lanes."""
    from helios_dod.perf.tick import WARM_TICKS, Load, run

    warm_up = WARM_TICKS
    if options.mixed:
        from helios_dod.perf import mixed

        warm_up = mixed.WARM_TICKS
        results = [mixed.run(lanes, options.ticks, options.seed) for lanes in options.lanes]
    else:
        results = [run(Load(lanes, options.context, options.ticks, options.stops,
                            options.shared, options.seed))
                   for lanes in options.lanes]
    if options.json:
        print(json.dumps({**conditions(options.seed, warm_up, options.ticks),
                          "results": results}))
        return 0
    for result in results:
        whole = result["tick"]
        load = (f"{result['running']} mixed requests" if options.mixed
                else f"{result['stop_lanes']} with stop strings")
        print(f"{result['lanes']} lanes, {load}: {whole['median_us']} us a tick, "
              f"p99 {whole['p99_us']} us")
        for name, part in result["systems"].items():
            print(f"    {name:10} {part['median_us']:9.2f}  p99 {part['p99_us']:9.2f}")
    return 0


def masks(options: argparse.Namespace) -> int:
    """Prints the cost of a grammar mask."""
    from helios_dod.perf.masks import Load, run

    result = run(Load(options.streams, options.repeats, options.seed))
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"mask and advance over {result['vocabulary']} tokens, {result['streams']} answers at "
          f"once: {result['median_us']} us a token ({result['lowest_us']} to "
          f"{result['highest_us']} in {result['repeats']} rounds), p99 {result['p99_us']} us")
    return 0


def prefix(options: argparse.Namespace) -> int:
    """Prints the cost of matching a cached prompt for each size of the index."""
    from helios_dod.perf.prefix import PLACED, WARM_UP, Load, run

    results = [run(Load(pages, options.prompt, beside, options.repeats, options.seed))
               for pages in options.pages for beside in PLACED]
    if options.json:
        print(json.dumps({**conditions(options.seed, WARM_UP, options.repeats),
                          "results": results}))
        return 0
    for result in results:
        print(f"{result['prompt']} tokens among {result['pages']} pages "
              f"{PLACED[result['beside']]}: repeated "
              f"{result['repeated']['median_us']} us, cold {result['cold']['median_us']} us; "
              f"{result['bytes_a_page']} bytes of state a page")
    return 0


def throughput(options: argparse.Namespace) -> int:
    """Prints tokens per second of a core on the host executor."""
    from helios_dod.perf.throughput import Load, run

    load = Load(tuple(options.streams), options.steps, options.prompt, options.prefill,
                options.repeats, options.seed)
    result = run(options.core, load, options.threads)
    if options.json:
        print(json.dumps(result))
        return 0
    for part in result["decode"]:
        print(f"decode, {part['streams']} streams: {part['tokens_per_second']} tokens/s "
              f"({part['lowest']} to {part['highest']})")
    part = result["prefill"]
    print(f"prefill of {part['tokens']}: {part['tokens_per_second']} tokens/s "
          f"({part['lowest']} to {part['highest']})")
    return 0


def offload(options: argparse.Namespace) -> int:
    """Prints the time to the first token of a prompt by where its pages are."""
    from helios_dod.perf.offload import Load, run

    result = run(options.core, Load(options.prompt, options.repeats, options.seed),
                 options.threads)
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"first token of {result['prompt']} prompt tokens, {result['pages']} pages of "
          f"{result['page_bytes']} bytes:")
    for place in ("computed", "resident", "memory", "disk"):
        part = result[place]
        more = f"  {part['pages_restored']} pages restored, {part['us_a_page']} us a page" if (
            "us_a_page" in part) else ""
        print(f"    {place:10} {part['ms']:9.2f} ms{more}")
    return 0


def load(options: argparse.Namespace) -> int:
    """Prints how long a core takes to load, by phase."""
    from helios_dod.perf.load import run, start_times

    result = run(options.core, options.repeats)
    if options.start:
        result["start_ms"] = start_times(options.core, options.repeats)
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"imports {result['imports_ms']} ms; {result['carrier']} core, program part "
          f"{result['cold_ms']['program']} ms cold ({result['cold_cpu_ms']} ms of processor), "
          f"{result['warm_ms']['program']} ms warm:")
    for name, value in result["cold_ms"].items():
        print(f"    {name:14} {value:9.2f}  warm {result['warm_ms'][name]:9.2f}")
    print("frontend {frontend} ms: assets {assets}, tokenizer, template, syntax {preparer}".format(
        **result["frontend_ms"]))
    print(f"weights, {result['weight_bytes']} bytes on {result['threads']} threads: trusted "
          f"{result['weights_trusted_ms']} ms, verified {result['weights_verified_ms']} ms; plain "
          f"SHA-256 {result['sha256_ms']} ms; {result['of_sha256_rate']} of its rate")
    if options.start:
        print("start to a loaded engine: verified {verified} ms, trusted {trusted} ms; the first, "
              "which compiles what is not in the code cache, {first} ms".format(
                  **{name: part["median"] if isinstance(part, dict) else part
                     for name, part in result["start_ms"].items()}))
    return 0


def lane_list(text: str) -> list[int]:
    """Comma-separated numbers of at least 1."""
    try:
        return [positive(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected numbers from 1 and commas, such as 256,1024, got {text!r}") from None


def add_tables(commands: Any) -> None:
    """What measures the scheduler's tables alone."""
    command = commands.add_parser("tick", help="host cost of a tick and of each system")
    command.add_argument("--lanes", type=lane_list, default=[1, 32, 256],
                         help="decoding lanes, comma-separated (default 1,32,256)")
    command.add_argument("--context", type=positive, default=1050,
                         help="prompt tokens of each lane")
    command.add_argument("--ticks", type=positive, default=500, help="timed ticks")
    command.add_argument("--stops", type=share, default=0.25,
                         help="share of lanes with stop strings (default 0.25)")
    command.add_argument("--shared", action="store_true", help="drained by another process")
    command.add_argument("--mixed", action="store_true",
                         help="requests of 512 tokens, half of them shared, come and go instead")
    command.add_argument("--seed", type=seed, default=1)
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(run=tick)
    command = commands.add_parser("masks", help="a grammar's mask, token by token")
    command.add_argument("--streams", type=positive, default=8, help="answers at once")
    command.add_argument("--repeats", type=positive, default=5,
                         help="rounds of answers that count (default %(default)s)")
    command.add_argument("--seed", type=seed, default=1)
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(run=masks)
    command = commands.add_parser("prefix", help="matching a fully cached prompt")
    command.add_argument("--pages", type=lane_list, default=[4096, 999_424],
                         help="pages in the index, comma-separated; whole prompts are indexed")
    command.add_argument("--prompt", type=positive, default=32_768, help="tokens of the prompt")
    command.add_argument("--repeats", type=positive, default=200,
                         help="matches that count; a tenth cold (default %(default)s)")
    command.add_argument("--seed", type=seed, default=3)
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(run=prefix)


def add_cores(commands: Any) -> None:
    """What measures a core in this process."""
    command = commands.add_parser("throughput", help="offline tokens per second of a core")
    command.add_argument("core", type=Path, help="a prepared core")
    command.add_argument("--streams", type=lane_list, default=[1, 8, 32],
                         help="numbers of parallel streams, comma-separated (default 1,8,32)")
    command.add_argument("--steps", type=positive, default=64, help="timed tokens of each stream")
    command.add_argument("--prompt", type=positive, default=50, help="prompt tokens of each stream")
    command.add_argument("--prefill", type=positive, default=400, help="tokens of the timed prompt")
    command.add_argument("--repeats", type=positive, default=3)
    command.add_argument("--seed", type=seed, default=7)
    command.add_argument("--threads", type=whole_number, default=0,
                         help="executor threads (0: processors)")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(run=throughput)
    command = commands.add_parser("offload", help="first token by where a prompt's pages are")
    command.add_argument("core", type=Path, help="a prepared core")
    command.add_argument("--prompt", type=positive, default=1000, help="tokens of the prompt")
    command.add_argument("--repeats", type=positive, default=7)
    command.add_argument("--seed", type=seed, default=9)
    command.add_argument("--threads", type=whole_number, default=0,
                         help="executor threads (0: processors)")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(run=offload)
    command = commands.add_parser("load", help="time of loading a core, by phase")
    command.add_argument("core", type=Path, help="a prepared core")
    command.add_argument("--repeats", type=positive, default=7)
    command.add_argument("--start", action="store_true",
                         help="also time loading the engine, weights verified and trusted")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(run=load)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m helios_dod.perf", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    add_tables(commands)
    add_cores(commands)
    for module, summary in ((simulate, "a load, in virtual time"),
                            (record, "a load on a core in this process, into a recording"),
                            (fit, "costs of programs, from recordings"),
                            (validate, "simulations of recorded runs beside them"),
                            (roofline, "costs of programs, from a declared machine"),
                            (kernels, "recorded programs against their floors"),
                            (bench, "figures beside their budgets"),
                            (report, "recordings and results as a page of plots"),
                            (start, "a server's time to listening and to ready"),
                            (streaming, "what a streamed token costs the HTTP workers"),
                            (cancel, "ticks from a cancel to free pages"),
                            (serve, "a load on a server, ours or another"),
                            (compare, "two results side by side")):
        command = commands.add_parser(module.__name__.rpartition(".")[2], help=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return made


def main() -> int:
    """Runs one command."""
    options = parser().parse_args()
    own_commit()
    try:
        return options.run(options)
    except UserError as error:
        print(f"perf {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
