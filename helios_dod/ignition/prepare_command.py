"""helios prepare: a checkpoint becomes a signed core."""

import argparse

from helios_dod.folders import named_path

DEFAULT_NAMESPACE = "local"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    add_source(parser)
    parser.add_argument(
        "--out", type=named_path, required=True, metavar="CORE", help="the folder to make"
    )
    parser.add_argument(
        "--recipe", type=name, metavar="NAME",
        help="which family of models it is (default: by the checkpoint)",
    )
    parser.add_argument(
        "--served-id",
        type=name,
        metavar="ID",
        help="the model id that clients name (default: by the checkpoint)",
    )
    parser.add_argument(
        "--cache-dtype",
        choices=("bf16", "f32"),
        default="bf16",
        help="element type of the attention history (default: %(default)s)",
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens of one request at most (default: the model's)",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        default=32,
        metavar="N",
        help="requests of one program at most (default: %(default)s)",
    )
    parser.add_argument(
        "--prefill-tokens",
        type=width_list,
        default=(),
        metavar="N,N",
        help="tokens that programs of prompts hold; a prompt goes in chunks of the most (default: "
        "64,128,256,512)",
    )
    add_speculation(parser)
    parser.add_argument(
        "--tool-syntax",
        type=name,
        metavar="NAME",
        help="how the model writes tool calls, or none (default: as its chat template shows)",
    )
    parser.add_argument(
        "--reasoning-syntax",
        type=name,
        metavar="NAME",
        help="how the model writes reasoning, or none (default: as its chat template shows)",
    )
    add_target(parser)
    parser.add_argument(
        "--namespace",
        default=DEFAULT_NAMESPACE,
        metavar="NAME",
        help="the publisher that the core is signed for (default: %(default)s)",
    )
    parser.add_argument(
        "--key",
        type=named_path,
        metavar="FILE",
        help="Ed25519 key in PEM form (default: this user's, made on first use)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a core that is there")


def add_target(parser: argparse.ArgumentParser) -> None:
    """What runs the core, and how its matrices are kept there."""
    parser.add_argument(
        "--target",
        choices=("host", "cuda-sm90"),
        default="host",
        help="what runs it; cuda-sm90 needs Triton here but no GPU (default: %(default)s)",
    )
    parser.add_argument(
        "--weights",
        choices=("bf16", "fp8", "fp8-head"),
        default="bf16",
        help="element type of the matrices of layers on cuda-sm90; fp8: e4m3 with a factor a row, "
        "and the rows they are multiplied with too, embedding and head excepted; fp8-head: the "
        "head too where it is not the embedding "
        "(default: %(default)s)",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """What weights the core has."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--checkpoint",
        type=named_path,
        metavar="PATH",
        help="a GGUF file, or a Hugging Face folder with safetensors",
    )
    source.add_argument(
        "--random-weights",
        metavar="SHAPE",
        help="a published shape without a checkpoint, for measurements: serve --random-weights "
        "makes its matrices on the device",
    )


def add_speculation(parser: argparse.ArgumentParser) -> None:
    """Which speculative programs are made."""
    parser.add_argument(
        "--speculative-widths",
        type=width_list,
        default=(),
        metavar="W,W",
        help="tokens that a request may emit in one program, 2 to 8 (default: one, no speculation)",
    )
    parser.add_argument(
        "--draft-layers",
        type=int,
        default=4,
        metavar="N",
        help="first layers that draw the drafts of a speculative program (default: %(default)s)",
    )
    parser.add_argument(
        "--drafted-lanes",
        type=int,
        default=8,
        metavar="N",
        help="requests of one speculative program at most among which constrained ones draft; each "
        "step copies a grammar mask for each token that each may emit (default: %(default)s)",
    )


def name(text: str) -> str:
    """A name; who wants the default leaves the option out."""
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return text


def width_list(text: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers separated by commas, such as 2,4, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Prepares, signs with the user's key and accepts that namespace for this user."""
    from helios_dod.ignition.make_core import make_core
    from helios_dod.ignition.preparation.options import Options

    options = Options(
        served_id=args.served_id, lanes=args.lanes, context=args.context, cache=args.cache_dtype,
        packed=args.prefill_tokens or Options.packed, tool_syntax=args.tool_syntax,
        reasoning_syntax=args.reasoning_syntax,
        widths=args.speculative_widths, draft_layers=args.draft_layers,
        drafted_lanes=args.drafted_lanes,
    )
    make_core(
        args.checkpoint,
        args.out,
        options,
        recipe=args.recipe,
        target_device=args.target,
        weight_type=args.weights,
        random_weights=args.random_weights,
        namespace=args.namespace,
        key_path=args.key,
        overwrite=args.overwrite,
    )
    print(f"prepared {args.out}; serve it with: helios serve {args.out}")
    return 0
