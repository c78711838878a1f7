"""What kernels were specialised for, as a core declares it: constants, parameters and their axes.

A line of LAYOUTS is a kernel and then, of its pointers to rows and matrices, the axes that the code
addresses: products of constants and number parameters, `any` where the code does not rely on it.
PARAMETER/CONSTANT: only where the constant is set, PARAMETER/!CONSTANT: only where it is not;
elsewhere the argument stands for nothing. PARAMETER<=NAME: a live count that must not exceed it.
ROW_HEADS are all heads of a product's row, those of keys and values too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helios_dod.contract.wire import manifest_pb2 as wire

PRODUCT = "x tokens,COLUMNS weight_scale/SCALED {0}ROWS x_scale/SCALED tokens live<=tokens"
HEADS = ("frequencies/HALF HALF bias/BIAS ROW_HEADS*HEAD query_norm/NORM HEAD key_norm/NORM HEAD "
         "keys any,KEY_HEADS*HEAD*PAGE values any,KEY_HEADS*HEAD*PAGE")
LAYOUTS = f"""
scatter_rows source any,WORDS destination any,WORDS
fill_rows destination any,WORDS
update_page_table updates any,3
copy_pages pairs any,2 plane any,WORDS
select_tokens
embed table any,COLUMNS output any,COLUMNS
select_rows source any,COLUMNS output any,COLUMNS
quantise rows any,COLUMNS output any,COLUMNS
normalise hidden any,COLUMNS output any,COLUMNS partials/SPLITS SPLITS*tokens,COLUMNS \
    weight COLUMNS bias/BIAS COLUMNS added_bias/ADDED COLUMNS live<=tokens
activate partials SPLITS*tokens,COLUMNS bias/BIAS COLUMNS output any,COLUMNS live<=tokens
rotate_and_store partials SPLITS*tokens,ROW_HEADS*HEAD query any,HEADS*HEAD {HEADS} live<=tokens
attention query any,HEADS*HEAD output any,HEADS*HEAD keys any,KEY_HEADS*HEAD*PAGE \
    values any,KEY_HEADS*HEAD*PAGE live<=LANES
decode_attention partials PARTIALS*tokens,ROW_HEADS*HEAD output any,HEADS*HEAD {HEADS} \
    part_values any,HEAD part_sums any,2 live<=tokens
decode.cu/decode_attention partials PARTIALS*TOKENS,ROW_HEADS*HEAD output any,HEADS*HEAD {HEADS} \
    live<=TOKENS
combine part_values any,HEAD part_sums any,2 output any,HEADS*HEAD
product weight ROWS,COLUMNS out SPLITS*tokens,ROWS {PRODUCT.format("")}
gated_product weight 2*ROWS,COLUMNS out tokens,ROWS {PRODUCT.format("2*")}
wide_product weight ROWS,COLUMNS out SPLITS*tokens,ROWS {PRODUCT.format("")}
wide_gated_product weight 2*ROWS,COLUMNS out tokens,ROWS {PRODUCT.format("2*")}
vector_product weight ROWS,COLUMNS x any,COLUMNS out any,ROWS weight_scale/SCALED ROWS
gated_vector_product weight 2*ROWS,COLUMNS x any,COLUMNS out any,ROWS weight_scale/SCALED 2*ROWS
few.cu/few_product weight/!GATED ROWS,COLUMNS weight/GATED 2*ROWS,COLUMNS x TOKENS,COLUMNS \
    out SPLITS*TOKENS,ROWS live<=TOKENS
trial.cu/mark_time
trial.cu/choose_fastest
adjust_logits logits any,VOCABULARY histogram any,VOCABULARY bias_tokens any,BIAS \
    bias_values any,BIAS stop_tokens any,STOPS mask_words/MASK any,MASK chunk_top any,CHUNKS \
    chunk_index any,CHUNKS
sample logits any,VOCABULARY top_tokens any,TOP top_logprobs any,TOP chunk_top any,CHUNKS \
    chunk_index any,CHUNKS
score logits any,VOCABULARY
advance histogram any,VOCABULARY stop_tokens any,STOPS live_lanes<=BLOCK live_sampled<=BLOCK
signal
"""


@dataclass(frozen=True)
class Given:
    """A parameter as it is compiled: its type, and for pointers the bytes that it is aligned to.
    words: the code takes elements of another type as this one."""

    name: str
    dtype: int
    alignment: int = 0
    pointer: bool = True
    words: bool = False


def layouts() -> dict[str, list[tuple[str, str, str]]]:
    """Kernel -> (parameter, condition, axes or <=NAME)."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in LAYOUTS.strip().splitlines():
        kernel, *words = line.split()
        found[kernel], parts = [], iter(words)
        for word in parts:
            name, bound, most = word.partition("<=")
            parameter, _, condition = name.partition("/")
            found[kernel].append((parameter, condition, bound + most if bound else next(parts)))
    return found


def declaration(kernel: str, entry: str, threads: int, constants: Mapping[str, int],
                given: Sequence[Given]) -> wire.CudaFunction:
    """What a core says of a compiled function. kernel: its line of LAYOUTS."""
    values = {name: int(value) for name, value in constants.items()}
    if "KEY_HEADS" in values:
        values["ROW_HEADS"] = values["HEADS"] + 2 * values["KEY_HEADS"]
    made = wire.CudaFunction(entry=entry, threads=threads, constants=[
        wire.CudaConstant(name=name, value=value) for name, value in values.items()])
    parameters = {}
    for one in given:
        kind = wire.CUDA_NUMBER if not one.pointer else (
            wire.CUDA_WORDS if one.words else wire.CUDA_POINTER)
        parameters[one.name] = made.parameters.add(
            name=one.name, kind=kind, dtype=one.dtype, alignment=one.alignment)
    for name, condition, axes in LAYOUT[kernel]:
        if condition and bool(values[condition.lstrip("!")]) == condition.startswith("!"):
            continue
        if axes.startswith("<="):
            parameters[name].count_max = axes[2:]
            continue
        for axis in axes.split(","):
            factors = [part for part in axis.split("*") if axis != "any"]
            made_axis = parameters[name].shape.add()
            for part in factors:
                if part.isdigit():
                    made_axis.multiplier = int(part)
                else:
                    made_axis.factors.append(part)
    return made


LAYOUT = layouts()
