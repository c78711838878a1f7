"""What a command is told of drafts and ends of answers on a simulated machine."""

import argparse
from argparse import ArgumentTypeError
from dataclasses import replace

from helios_dod.arguments import share, whole_number
from helios_dod.errors import UserError
from helios_dod.executors.acceptance import PLACES_MAX, Acceptance
from helios_dod.executors.costs import Costs
from helios_dod.simulation.machine import DRAFTS_MAX, Machine


def shares(text: str) -> tuple[float, ...]:
    """Numbers of 0..1 behind commas."""
    found = tuple(share(part) for part in text.split(","))
    if len(found) > PLACES_MAX:
        raise ArgumentTypeError(f"1 to {PLACES_MAX} places possible, got {len(found)}")
    return found


def add_drafting_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `drafting_of` and studies take."""
    add = parser.add_argument
    add("--drafts", type=lambda text: whole_number(text, 0, DRAFTS_MAX), default=0,
        help="of the widest speculative rounds; narrower ones are there too (default: none)")
    add("--accept", type=shares,
        help="share of the drafts that are right: of each place, the last for all behind it, as "
             "0.9,0.8,0.7 (default: what --costs was fitted to)")
    add("--accept-spread", type=share, default=0.0,
        help="how far a draft's confidence, by which a device allocates target rows, lies from its "
             "share (default: no device allocates)")
    add("--output-limit", type=whole_number, default=0,
        help="tokens that requests ask at most, so that ends of answers are not known before "
             "(default: the trace's lengths are the limits)")


def drafting_of(args: argparse.Namespace, machine: Machine) -> Machine:
    """The machine with what was asked; its costs may know acceptance. Raises UserError."""
    acceptance = None
    if args.accept is not None:
        acceptance = Acceptance.of(args.accept, args.accept_spread)
    elif isinstance(machine.cost, Costs):
        acceptance = machine.cost.acceptance
    if args.drafts == 0:
        if args.accept is not None:
            raise UserError("--accept: --drafts is needed with it")
        return machine
    if acceptance is None:
        raise UserError("--drafts: --accept is needed, or --costs fitted to rounds with drafts")
    spread = Acceptance.of((0.0,), args.accept_spread).spread
    return replace(machine, drafts=args.drafts, acceptance=replace(acceptance, spread=spread))
