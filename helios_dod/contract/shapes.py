"""How wide the operands of a host operation are, of which type, and what else must hold of them.

Only what the operation reads or writes is looked at; which rows there are is bodies.py's."""

from collections.abc import Callable
from math import prod
from typing import Any

from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.operations import Touch
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.limits import BIAS_MAX, MASK_BITS, TOP_LOGPROBS_MAX

TYPES = {"f32": (wire.F32,), "i32": (wire.I32,), "u32": (wire.U32,), "i64": (wire.I64,),
         "word": (wire.F32, wire.I32, wire.U32), "seed": (wire.U64, wire.U32, wire.I32),
         "bytes": (wire.F32, wire.F16, wire.BF16, wire.U32, wire.I64, wire.U64, wire.U8, wire.I8)}
TRIAL_ROWS_MAX = 1024  # of a product in a tuning graph
PLAIN_TABLES = (wire.F32, wire.F16, wire.BF16)
Problem = tuple[str, str, object] | None  # field, expected, got


class Operation:
    """One host operation of a manifest, with the widths of its operands."""

    def __init__(self, buffers: list[wire.Buffer], widths: list[int | None],
                 serving: contract.ServingContract, name: str, part: Any) -> None:
        self.buffers, self.widths, self.serving = buffers, widths, serving
        self.name, self.part = name, part

    def buffer(self, field: str) -> wire.Buffer:
        """The buffer that a field names."""
        value = getattr(self.part, field)
        return self.buffers[value if isinstance(value, int) else value.buffer]

    def width(self, field: str) -> int | None:
        """Elements of a row of an operand; None: chosen at load."""
        value = getattr(self.part, field)
        whole = self.widths[value.buffer]
        return value.columns or (None if whole is None else whole - value.column)

    def elements(self, field: str) -> int:
        """Of a WEIGHT."""
        return prod(axis.multiplier for axis in self.buffer(field).shape)

    def term(self, text: str) -> int | None:
        """What a width of a declaration comes to."""
        if text.isdigit():
            return int(text)
        if text.startswith("="):
            return self.width(text[1:])
        if text in TERMS:
            return TERMS[text](self)
        return prod(getattr(self.part, name) for name in text.split("*"))

    def touch_problem(self, touch: Touch) -> Problem:
        """What a touched buffer's width and type should be."""
        if touch.role in ("cache", "store"):
            return None
        buffer = self.buffer(touch.field)
        if touch.type not in ("-", "any"):
            types = ((self.buffer(touch.type[1:]).dtype,) if touch.type.startswith("=")
                     else TYPES[touch.type])
            if buffer.dtype not in types:
                return (touch.field, " or ".join(map(wire.DataType.Name, types)),
                        wire.DataType.Name(buffer.dtype))
        panel = buffer.HasField("panel")
        if touch.role in ("weight", "matrix") and panel != (touch.role == "matrix"):
            texts = "plain values", "panels"
            return touch.field, texts[not panel], texts[panel]
        if touch.columns == "any" or touch.role in ("matrix", "table"):
            return None
        if (touch.columns.startswith("=") and touch.role != "weight"
                and self.width(touch.field) is None):
            other = self.buffer(touch.columns[1:])
            same = list(buffer.shape)[1:] == list(other.shape)[1:]
            return None if same else (touch.field, f"rows as wide as those of {other.name}",
                                      buffer.name)
        wanted = self.term(touch.columns.removeprefix(">="))
        got = self.elements(touch.field) if touch.role == "weight" else self.width(touch.field)
        least = touch.columns.startswith(">=")
        enough = least and got is not None and wanted is not None and got > wanted
        if got != wanted and not enough:
            return touch.field, f"{'at least ' if least else ''}{wanted} elements of a row", got
        return None

    def problem(self) -> Problem:
        """What must hold between the operands and attributes."""
        check = RELATIONS.get(self.name)
        return None if check is None else check(self)


TERMS: dict[str, Callable[[Operation], int | None]] = {
    "vocabulary": lambda op: op.serving.model.vocabulary,
    "mask": lambda op: -(-op.serving.model.vocabulary // MASK_BITS),
    "biases": lambda op: BIAS_MAX, "top": lambda op: TOP_LOGPROBS_MAX,
    "seed": lambda op: 8 // ELEMENT_BYTES[op.buffer("seed").dtype],
    "group": lambda op: op.part.group or op.width("input"),
    "columns": lambda op: op.buffer("weight").panel.columns,
    "outputs": lambda op: op.buffer("weight").panel.rows,
    "drafts": lambda op: 0,  # of the program: bodies.py's
}


def _normalise(op: Operation) -> Problem:
    width = op.width("input")
    right = width is not None and width % (op.part.group or width) == 0
    return None if right else ("group", f"a divisor of {width} columns", op.part.group)


def _embed(op: Operation) -> Problem:
    table, width = op.buffer("table"), op.width("output")
    if table.HasField("panel"):
        right = table.panel.columns == width
    else:
        right = table.dtype in PLAIN_TABLES and len(table.shape) == 2 and (
            table.shape[1].multiplier == width)
    return None if right else (
        "table", f"rows of {width} F32, F16 or BF16, or panels of as many columns", table.name)


def _rotary(op: Operation) -> Problem:
    head, width = op.part.head, op.width("operand")
    if head == 0 or width is None or width % head:
        return "head", f"a divisor of {width} columns", head
    count = op.elements("frequencies")
    right = len(op.buffer("frequencies").shape) == 1 and 2 * count <= head
    return None if right else ("frequencies", f"at most {head // 2}, of one axis", count)


def _planes(op: Operation, heads: int) -> Problem:
    """A page of each plane holds `heads` heads of every token."""
    page_tokens, head = op.serving.model.cache.page_tokens, op.part.head
    regions = op.serving.model.cache.regions
    for field in ("key_cache", "value_cache"):
        plane = op.buffer(field)
        elements = prod(axis.multiplier * (page_tokens if axis.symbol else 1)
                        for axis in plane.shape[1:])
        if elements != heads * head * page_tokens:
            return (field, f"{heads * head * page_tokens} elements of a page: {heads} heads of "
                    f"{head}, {page_tokens} tokens", elements)
        if plane.dtype not in (wire.F32, wire.BF16):
            return field, "F32 or BF16", wire.DataType.Name(plane.dtype)
        number = getattr(op.part, field)
        ratio = next((r.compression_ratio for r in regions if number in r.planes), 1)
        if ratio != 1:
            return field, "a region of compression ratio 1, a record a token", ratio
    keys, values = op.buffer("key_cache"), op.buffer("value_cache")
    if keys.dtype != values.dtype or keys.shape[0] != values.shape[0]:
        return "value_cache", "the type and page group of the keys", values.name
    return None


def _cache_write(op: Operation) -> Problem:
    head, width = op.part.head, op.width("key")
    if head == 0 or width is None or width % head:
        return "head", f"a divisor of {width} columns of a key", head
    return _planes(op, width // head)


def _attention(op: Operation) -> Problem:
    part = op.part
    for field in ("head", "key_heads", "heads"):
        if getattr(part, field) == 0:
            return field, "at least 1", 0
    if part.heads % part.key_heads:
        return "heads", f"a multiple of {part.key_heads} key heads", part.heads
    return _spans(op) or _planes(op, part.key_heads)


def _spans(op: Operation) -> Problem:
    right = op.part.rows not in (wire.ROWS_LANES, wire.ROWS_SAMPLED)
    return None if right else (
        "rows", "ROWS_PACKED or ROWS_DRAWN", wire.RowDomain.Name(op.part.rows))


def _recurrent_scan(op: Operation) -> Problem:
    part, gates = op.part, op.width("gate")
    for field in ("heads", "key_heads", "key_columns", "value_columns"):
        if getattr(part, field) == 0:
            return field, "at least 1", 0
    if part.heads % part.key_heads:
        return "heads", f"a multiple of {part.key_heads} key heads", part.heads
    step = part.strength_kind == wire.STRENGTH_STEP
    widths = (part.heads,) if step else (part.heads, part.heads * part.key_columns)
    if gates not in widths:
        return "gate", " or ".join(map(str, widths)) + " columns", gates
    sigmoid = part.strength_kind == wire.STRENGTH_SIGMOID
    return _spans(op) if sigmoid == part.has_strength else (
        "has_strength", "an operand exactly for STRENGTH_SIGMOID", part.has_strength)


def _causal_convolution(op: Operation) -> Problem:
    taps, columns = op.buffer("taps").shape, op.width("input")
    if len(taps) != 2 or taps[0].multiplier < 2 or taps[1].multiplier != columns:
        return "taps", f"[2 or more, {columns}]", [axis.multiplier for axis in taps]
    kept = (taps[0].multiplier - 1) * taps[1].multiplier
    return _spans(op) if op.width("state") == kept else (
        "state", f"{kept} columns, the inputs before the first tap", op.width("state"))


def _copy_state_rows(op: Operation) -> Problem:
    return None if op.part.rows >= 1 else ("rows", "at least 1", op.part.rows)


def _copy_partial_page(op: Operation) -> Problem:
    page_tokens, plane = op.serving.model.cache.page_tokens, op.buffer("cache")
    nbytes = ELEMENT_BYTES[plane.dtype] * prod(
        axis.multiplier * (page_tokens if axis.symbol else 1) for axis in plane.shape[1:])
    width = op.width("storage")
    room = None if width is None else width * ELEMENT_BYTES[op.buffer("storage").dtype]
    return None if room is not None and room >= nbytes else (
        "storage", f"at least {nbytes} bytes, a page of {plane.name}", room)


def _product(op: Operation) -> Problem:
    rows, trial = op.part.trial_rows, op.part.rows == wire.ROWS_TRIAL
    right = 0 < rows <= TRIAL_ROWS_MAX if trial else rows == 0
    return None if right else (
        "trial_rows", f"1 to {TRIAL_ROWS_MAX}" if trial else "0 without ROWS_TRIAL", rows)


def _choose_fastest(op: Operation) -> Problem:
    marks, best = op.width("marks"), op.width("best")
    right = marks is not None and best == marks - 1
    return None if right else ("best", f"{marks} - 1 columns, one a candidate", best)


RELATIONS: dict[str, Callable[[Operation], Problem]] = {
    "normalise": _normalise, "embed": _embed, "rotary": _rotary, "cache_write": _cache_write,
    "attention": _attention, "recurrent_scan": _recurrent_scan,
    "causal_convolution": _causal_convolution, "copy_state_rows": _copy_state_rows,
    "copy_partial_page": _copy_partial_page, "choose_fastest": _choose_fastest,
    "product": _product}
