"""Bootstrap: the frontend's side of a core. Its only assets are tokenizer data and chat template;
all else is the typed contract."""

from dataclasses import dataclass
from pathlib import Path

from helios_dod.contract.prepared import PreparedContract, PreparedFrontend, PreparedSampling
from helios_dod.cores.reader import Core
from helios_dod.frontend.assets import Assets, Sampling
from helios_dod.frontend.boundaries import Boundary, Constraint
from helios_dod.frontend.images.syntax import (
    Arrangement,
    Filter,
    ImageSyntax,
    PatchOrder,
    Preparation,
)
from helios_dod.frontend.output.syntax import OutputSyntax
from helios_dod.frontend.output.wire import from_contract
from helios_dod.frontend.syntaxes import compose
from helios_dod.frontend.text import ByteTable
from helios_dod.runtime.binding import takes_masks
from helios_dod.runtime.native_model import Opened, open_accepted
from helios_dod.terms import OP_SCORED_PREFILL


def sampling_of(declared: PreparedSampling) -> Sampling:
    """The core's sampling defaults; what it leaves open is OpenAI's default."""
    given = {name: getattr(declared, name) for name in Sampling.__dataclass_fields__}
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def declared_output(frontend: PreparedFrontend) -> OutputSyntax | None:
    """The syntax that a core's output has; None: all of it is text. That it is the data of the
    selected syntaxes was seen when the contract was validated. Raises UserError."""
    return None if frontend.output is None else from_contract(frontend.output)


def images_of(prepared: PreparedContract) -> ImageSyntax | None:
    """How the core's images are prepared and laid out; None: it takes none."""
    image, vision = prepared.frontend.image, prepared.vision
    if image is None or vision is None:
        return None
    tokens = frozenset({*image.feature_tokens, image.placeholder_token})
    around = {token for pair in image.atomic_spans for token in pair}
    around |= {part for part in image.parts_before + image.parts_after if isinstance(part, int)}
    separator = -1 if image.separator_token is None else image.separator_token
    return ImageSyntax(
        preparation=Preparation(image.preparation), arrangement=Arrangement(image.layout),
        order=PatchOrder(image.patch_order), filter=Filter(image.resize_filter),
        feature_token=image.feature_tokens[0], placeholder_token=image.placeholder_token,
        tokens=tokens, reserved=tokens | around,
        spans=image.atomic_spans, separator_token=separator, before=image.parts_before,
        after=image.parts_after, feature_slots=vision.feature_slots,
        features_max=vision.features_per_window, patches_max=vision.patch_capacities[-1],
        cap_patches=image.patches_max, cap_side_patches=image.side_patches_max,
        **{name: getattr(image, name) for name in (
            "patch", "merged_side", "mean", "deviation", "pixels_min", "pixels_max", "area_frames",
            "side_min", "aspect_max", "pad_value", "temporal_patch", "fixed_features", "tensors")})


@dataclass(frozen=True)
class Bootstrap:
    """A validated contract and the frontend assets loaded from the same core."""

    contract: PreparedContract
    assets: Assets

    @classmethod
    def load(cls, path: Path, tool_syntax: str | None = None,
             reasoning_syntax: str | None = None) -> "Bootstrap":
        """Opens and validates a core. The names of syntaxes replace what the core declares.

        Raises CoreError, ContractError, UserError, ValueError."""
        opened = open_accepted(path)
        return cls.of(opened.core, opened.contract, tool_syntax, reasoning_syntax)

    @classmethod
    def of(cls, core: Core, contract: PreparedContract, tool_syntax: str | None = None,
           reasoning_syntax: str | None = None) -> "Bootstrap":
        """The same for a core that is opened and its contract. Raises CoreError, UserError."""
        table, frontend = core.token_bytes(), contract.frontend
        output = declared_output(frontend)
        return cls(contract, Assets(
            served_id=contract.served_id, aliases=contract.aliases,
            tokenizer_json=core.tokenizer(), chat_template=core.chat_template(),
            byte_table=ByteTable.of(
                table.data.tobytes(), table.offsets, table.special.tobytes()),
            strip_leading_space=frontend.strip_leading_space, eos=frontend.eos_tokens,
            bos=frontend.bos_token, add_bos=frontend.add_bos, vocabulary=contract.vocabulary,
            input_vocabulary=contract.input_vocabulary, context_tokens=contract.context_tokens,
            sampling=sampling_of(contract.sampling),
            template_tokens=dict(frontend.template_tokens),
            output=compose(tool_syntax, reasoning_syntax, output),
            masks=takes_masks(contract.programs, host_pending=False),
            scores=any(p.operation == OP_SCORED_PREFILL for p in contract.programs),
            image=images_of(contract),
            boundaries=tuple(Boundary(rule.roles, Constraint(rule.constraint))
                             for rule in frontend.prefix_boundaries)))


def load_assets(path: Path, tool_syntax: str | None = None, reasoning_syntax: str | None = None,
                opened: Opened | None = None) -> Assets:
    """The assets of Bootstrap.load, which each worker of a server calls. opened: the core at that
    path, if it is there already."""
    opened = opened or open_accepted(path)
    return Bootstrap.of(opened.core, opened.contract, tool_syntax, reasoning_syntax).assets
