"""What a person chooses at preparation."""

from dataclasses import dataclass, field

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.frontend.output.syntax import OutputSyntax
from helios_dod.ignition.checkpoints.checkpoint import GenerationDefaults
from helios_dod.ignition.prepared import PreparationError
from helios_dod.limits import HUGE

PAGE_TOKENS = 16
WIDTH_MAX = 8  # tokens of one round: what every size of engine but the smallest can take
CACHE_TYPES = {"bf16": wire.BF16, "f32": wire.F32}


@dataclass(frozen=True)
class Options:
    """Capacities and storage of the programs to emit."""

    served_id: str | None = None  # None: the checkpoint's own name
    lanes: int = 32  # requests of one program at most
    context: int | None = (
        None  # tokens of one request at most; None: what the model was trained for
    )
    cache: str = "bf16"  # element type of the attention history, a key of CACHE_TYPES
    packed: tuple[int, ...] = (64, 128, 256, 512)  # token capacities of prefill and mixed programs
    scored: int = 64  # token capacity of scored prefill
    widths: tuple[int, ...] = ()  # of speculative programs wider than one token; empty: none
    draft_layers: int = 4  # first layers that draw drafts
    # Lanes of a round at most that takes grammar masks. A host copies a mask a token of each lane.
    drafted_lanes: int = 8
    snapshots: int = 32  # snapshots of state, where the model has state beside pages
    tool_syntax: str | None = None  # a name of the catalog, or none; None: as the template shows
    reasoning_syntax: str | None = None  # likewise
    output: OutputSyntax | None = None  # what these and the template come to; the recipe sets it
    sampling: GenerationDefaults = field(default_factory=GenerationDefaults)  # a model card's

    def __post_init__(self) -> None:
        for name, value, most in (
            ("lanes", self.lanes, HUGE.lanes_max),
            ("context", 1 if self.context is None else self.context, None),  # context_of bounds it
            ("scored", self.scored, HUGE.packed_max),
            ("snapshots", self.snapshots, HUGE.snapshots_max),
            ("drafted_lanes", self.drafted_lanes, HUGE.lanes_max),
        ):
            if value < 1 or (most is not None and value > most):
                wanted = "at least 1" if most is None else f"1 to {most}"
                raise PreparationError(f"option {name}: expected {wanted}, got {value}")
        if any(not 2 <= width <= WIDTH_MAX for width in self.widths):
            raise PreparationError(
                f"option widths: expected 2 to {WIDTH_MAX}, got {self.widths}")
        if self.draft_layers < 1:
            raise PreparationError(
                f"option draft_layers: expected at least 1, got {self.draft_layers}")
        if self.cache not in CACHE_TYPES:
            raise PreparationError(
                f"option cache: expected one of {', '.join(CACHE_TYPES)}, got {self.cache}"
            )
        if not self.packed or min(self.packed) < 1 or max(self.packed) > HUGE.packed_max:
            raise PreparationError(
                f"option packed: expected capacities of 1 to {HUGE.packed_max}, got {self.packed}"
            )

    @property
    def cache_dtype(self) -> wire.DataType:
        """DataType of the cache planes."""
        return CACHE_TYPES[self.cache]

    def context_of(self, model_context: int) -> int:
        """Context that is served; a longer one than the model's is refused."""
        if self.context is None:
            return model_context
        if self.context > model_context:
            raise PreparationError(
                f"option context: expected at most {model_context}, got {self.context}"
            )
        return self.context
