"""ImageSyntax and VisionContract: how pixels become patches and tokens, and room for features."""

from collections.abc import Sequence, Set
from math import isfinite, isqrt

from helios_dod.contract.errors import require
from helios_dod.contract.prepared import PreparedImage, PreparedVision
from helios_dod.contract.wire import contract_pb2 as contract

CHANNELS = 3  # of an image's mean and deviation
PIXELS_MAX = 1 << 28
SIDE_MAX = 1 << 14  # pixels or patches
FRAMES_MAX = 64  # copies of an image in a patch
PARTS_MAX = 16  # laid around an image's features
TEXT_NBYTES_MAX = 128  # of one of them


def prepare_image(model: contract.ModelContract, field: str) -> PreparedImage | None:
    """How images are prepared and laid into prompts. Raises ContractError."""
    frontend = model.frontend
    require(frontend.HasField("image") == model.HasField("vision"), field,
            "image syntax exactly where ModelContract.vision is declared",
            "present" if frontend.HasField("image") else "none")
    if not frontend.HasField("image"):
        return None
    require(model.version >= 3, field, "no images before version 3", model.version)
    image, tokens, settings = frontend.image, frontend.image.tokens, frontend.image.settings
    _check_settings(image, f"{field}.settings")
    separator = tokens.separator_token if tokens.HasField("separator_token") else None
    require((separator is not None) == (image.layout == contract.FEATURE_ROWS),
            f"{field}.tokens.separator_token", "a separator exactly for FEATURE_ROWS", separator)
    tensors = tuple(image.tensors)
    require(len(set(tensors)) == len(tensors) and all(tensors), f"{field}.tensors",
            "names of their own", ", ".join(tensors))
    features = tuple(tokens.feature_tokens)
    require(bool(features), f"{field}.tokens.feature_tokens", "at least one", 0)
    spans = tuple((span.open_token, span.close_token) for span in tokens.atomic_spans)
    placeholder = features[0]
    if tokens.HasField("placeholder_token"):
        placeholder = tokens.placeholder_token
    for name, ids in (("feature_tokens", features), ("separator_token", (separator or 0,)),
                      ("placeholder_token", (placeholder,)),
                      ("atomic_spans", tuple(token for span in spans for token in span))):
        for token in ids:
            require(token < model.input_vocabulary, f"{field}.tokens.{name}",
                    f"below the input vocabulary, {model.input_vocabulary}", token)
    ends = {token for span in spans for token in span}
    _check_features(model.vocabulary, features, ends | {separator}, f"{field}.tokens")
    return PreparedImage(
        preparation=contract.ImagePreparation.Name(image.preparation).lower(),
        layout=contract.ImageLayout.Name(image.layout).lower(),
        resize_filter=contract.ResizeFilter.Name(
            settings.filter if settings.HasField("filter") else contract.BICUBIC).lower(),
        patch_order=contract.PatchOrder.Name(
            settings.order if settings.HasField("order") else contract.MERGED_BLOCKS).lower(),
        feature_tokens=features,
        atomic_spans=spans, separator_token=separator, placeholder_token=placeholder,
        parts_before=_prepare_parts(model, tokens.before, f"{field}.tokens.before"),
        parts_after=_prepare_parts(model, tokens.after, f"{field}.tokens.after"),
        patch=settings.patch, merged_side=_merged_side(model, f"{field}.settings"),
        temporal_patch=settings.temporal_patch or 1, area_frames=settings.area_frames or 1,
        pixels_min=settings.pixels_min, pixels_max=settings.pixels_max,
        side_min=settings.side_min, aspect_max=settings.aspect_max,
        patches_max=settings.patches_max, side_patches_max=settings.side_patches_max,
        pad_value=settings.pad_value, fixed_features=settings.fixed_features,
        mean=tuple(settings.mean), deviation=tuple(settings.deviation), tensors=tensors)


def _check_features(
    vocabulary: int, features: tuple[int, ...], others: Set[int | None], field: str,
) -> None:
    """Ids of features stand for nothing else: no text has them, no span opens or closes by them."""
    require(len(set(features)) == len(features), f"{field}.feature_tokens", "each once",
            ", ".join(map(str, features)))
    for i, token in enumerate(features):
        require(token >= vocabulary, f"{field}.feature_tokens[{i}]",
                f"an id beyond the vocabulary, {vocabulary}, which text has", token)
        require(token not in others, f"{field}.feature_tokens[{i}]",
                "no separator and no end of a span", token)


def _check_settings(image: contract.ImageSyntax, field: str) -> None:
    settings, capped = image.settings, image.preparation == contract.CAP_AND_PAD
    require(1 <= settings.patch <= SIDE_MAX, f"{field}.patch", f"1 to {SIDE_MAX}", settings.patch)
    if not capped:
        require(0 < settings.pixels_min <= settings.pixels_max <= PIXELS_MAX,
                f"{field}.pixels_max", f"pixels_min to {PIXELS_MAX}, above 0",
                settings.pixels_max)
    for name, most in (("patches_max", PIXELS_MAX), ("side_patches_max", SIDE_MAX)):
        value = getattr(settings, name)
        right = 1 <= value <= most if capped else value == 0
        require(right, f"{field}.{name}", f"1 to {most} for CAP_AND_PAD, 0 for others", value)
    for name, most in (("temporal_patch", FRAMES_MAX), ("area_frames", FRAMES_MAX),
                       ("side_min", SIDE_MAX), ("aspect_max", SIDE_MAX), ("pad_value", 255),
                       ("fixed_features", PIXELS_MAX)):
        value = getattr(settings, name)
        require(value <= most, f"{field}.{name}", f"at most {most}", value)
    for name, lowest in (("mean", -1e6), ("deviation", 1e-6)):
        values = tuple(getattr(settings, name))
        right = len(values) == CHANNELS and all(isfinite(v) and v >= lowest for v in values)
        require(right, f"{field}.{name}", f"{CHANNELS} finite values", len(values))


def _merged_side(model: contract.ModelContract, field: str) -> int:
    """Patches along each side of what one feature is made of."""
    ratio = model.vision.patches_per_feature
    side = isqrt(ratio)
    require(side >= 1 and side * side == ratio, "contract.model.vision.patches_per_feature",
            "a square above 0", ratio)
    fixed = model.frontend.image.settings.fixed_features
    require(fixed <= model.vision.features_per_window, f"{field}.fixed_features",
            f"at most {model.vision.features_per_window}, the features of a window", fixed)
    require(fixed == 0 or model.frontend.image.layout == contract.FEATURE_RUN,
            f"{field}.fixed_features", "0 but for FEATURE_RUN", fixed)
    return side


def _prepare_parts(model: contract.ModelContract, parts: Sequence[contract.ImagePart],
                   field: str) -> tuple[int | str, ...]:
    """Token ids and texts."""
    require(len(parts) <= PARTS_MAX, field, f"at most {PARTS_MAX}", len(parts))
    made: list[int | str] = []
    for i, part in enumerate(parts):
        if part.WhichOneof("part") == "token":
            require(part.token < model.input_vocabulary, f"{field}[{i}].token",
                    f"below the input vocabulary, {model.input_vocabulary}", part.token)
            made.append(part.token)
            continue
        nbytes = len(part.text.encode())
        require(1 <= nbytes <= TEXT_NBYTES_MAX, f"{field}[{i}]",
                f"a token, or text of 1 to {TEXT_NBYTES_MAX} bytes", nbytes)
        made.append(part.text)
    return tuple(made)


def prepare_vision(model: contract.ModelContract) -> PreparedVision | None:
    """Capacities of image features. Raises ContractError."""
    if not model.HasField("vision"):
        return None
    vision, field = model.vision, "contract.model.vision"
    for name in ("feature_slots", "features_per_window", "patches_per_feature"):
        value = getattr(vision, name)
        require(1 <= value <= 1 << 24, f"{field}.{name}", f"1 to {1 << 24}", value)
    patches = tuple(vision.patch_capacities)
    require(bool(patches) and list(patches) == sorted(set(patches)) and patches[0] > 0,
            f"{field}.patch_capacities", "ascending capacities above 0", patches)
    largest = vision.features_per_window * vision.patches_per_feature
    require(patches[-1] <= largest, f"{field}.patch_capacities",
            f"at most {largest}, the patches of one window's features", patches[-1])
    return PreparedVision(vision.feature_slots, vision.features_per_window,
                          vision.patches_per_feature, patches)
