"""How a core's images are prepared and laid out, as data. Nothing here names a model."""

from dataclasses import dataclass
from enum import StrEnum


class Preparation(StrEnum):
    """How pixels become a grid of patches."""

    RESIZE_TO_GRID = "resize_to_grid"  # sides rounded to multiples of a merged patch
    RESIZE_AND_TILE = "resize_and_tile"  # an overview and square tiles
    CAP_AND_PAD = "cap_and_pad"  # shrunk into limits, then padded to such multiples


class Arrangement(StrEnum):
    """How features lie in the prompt, and what their positions are."""

    FEATURE_RUN = "feature_run"  # one token each, positions of one axis
    FEATURE_GRID = "feature_grid"  # one token each, positions of time, row and column
    FEATURE_ROWS = "feature_rows"  # rows, each closed by a separator; positions of one axis


class PatchOrder(StrEnum):
    """In which order patches follow each other."""

    MERGED_BLOCKS = "merged_blocks"  # those of one feature together, features row by row
    RASTER = "raster"


class Filter(StrEnum):
    """What a resized pixel is made of."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


@dataclass(frozen=True)
class ImageSyntax:
    """One core's images. Sides are in pixels unless they say otherwise."""

    preparation: Preparation
    arrangement: Arrangement
    feature_token: int
    placeholder_token: int  # what the template writes for an image
    tokens: frozenset[int]  # that stand for an image: only one brings them into a prompt
    reserved: frozenset[int]  # those, and others around it that no text of a request becomes
    patch: int
    merged_side: int  # patches along each side of a feature
    mean: tuple[float, ...]  # of the channels, on a scale of 0 to 1
    deviation: tuple[float, ...]
    feature_slots: int  # images of one prompt at most
    features_max: int  # of one image
    patches_max: int
    spans: tuple[tuple[int, int], ...] = ()  # (opening token, closing token) that nothing parts
    separator_token: int = -1  # of FEATURE_ROWS
    before: tuple[int | str, ...] = ()  # laid around the features
    after: tuple[int | str, ...] = ()
    pixels_min: int = 1
    pixels_max: int = 1
    area_frames: int = 1  # pixels_min and pixels_max count the image so often
    side_min: int = 0  # an image with a shorter side is first enlarged to it
    aspect_max: int = 0  # 0: any
    cap_patches: int = 0  # limits of CAP_AND_PAD
    cap_side_patches: int = 0
    pad_value: int = 0  # 0 to 255
    temporal_patch: int = 1  # a patch holds the image so often
    fixed_features: int = 0  # of every image; 0: one for each merged patch
    order: PatchOrder = PatchOrder.MERGED_BLOCKS
    filter: Filter = Filter.BICUBIC
    tensors: tuple[str, ...] = ()  # that programs bind by name

    @property
    def factor(self) -> int:
        """Pixels along each side of a merged patch."""
        return self.patch * self.merged_side
