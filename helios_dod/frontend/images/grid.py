"""From an image's sides to those of its grid: the rules of resizing.

RESIZE_TO_GRID is `smart_resize` of the image processors of Hugging Face transformers, CAP_AND_PAD
their `navit_resize`, with every number of them as data."""

import math
from dataclasses import dataclass

from helios_dod.frontend.images.syntax import ImageSyntax, Preparation


class GridError(ValueError):
    """An image that no grid of the syntax fits."""


@dataclass(frozen=True)
class Grid:
    """What an image becomes. Heights come first."""

    resized: tuple[int, int]  # pixels of the image itself
    padded: tuple[int, int]  # pixels of the grid
    patches: tuple[int, int]  # rows and columns
    features: tuple[int, int]  # rows and columns of merged patches
    feature_count: int

    @property
    def patch_count(self) -> int:
        """Patches of the whole grid."""
        return self.patches[0] * self.patches[1]


def grid_of(height: int, width: int, syntax: ImageSyntax) -> Grid:
    """The grid of an image. Raises GridError where it is too long or makes too many features."""
    if syntax.preparation == Preparation.CAP_AND_PAD:
        resized = capped(height, width, syntax)
        padded = tuple(side + -side % syntax.factor for side in resized)
    elif syntax.preparation == Preparation.RESIZE_TO_GRID:
        padded = resized = rounded(height, width, syntax)
    else:
        raise GridError(f"this server prepares no images by {syntax.preparation}")
    rows, columns = (side // syntax.patch for side in padded)
    merged = rows // syntax.merged_side, columns // syntax.merged_side
    count = syntax.fixed_features or merged[0] * merged[1]
    for what, found, most in (("patches", rows * columns, syntax.patches_max),
                              ("features", count, syntax.features_max)):
        if found > most:
            raise GridError(f"{height} x {width} pixels make {found} {what}, at most {most} "
                            "are possible")
    return Grid(resized, (padded[0], padded[1]), (rows, columns), merged, count)


def rounded(height: int, width: int, syntax: ImageSyntax) -> tuple[int, int]:
    """Sides rounded to multiples of a merged patch, half to even, in the bounds of the area."""
    factor, frames = syntax.factor, syntax.area_frames
    if min(height, width) < syntax.side_min:
        scale = max(syntax.side_min / height, syntax.side_min / width)
        height, width = int(height * scale), int(width * scale)
    if syntax.aspect_max and max(height, width) / min(height, width) > syntax.aspect_max:
        raise GridError(f"{height} x {width} pixels are longer than {syntax.aspect_max} to 1")
    sides = round(height / factor) * factor, round(width / factor) * factor
    area, whole = frames * sides[0] * sides[1], frames * height * width
    if area > syntax.pixels_max:
        scale = math.sqrt(whole / syntax.pixels_max)
        return (max(factor, math.floor(height / scale / factor) * factor),
                max(factor, math.floor(width / scale / factor) * factor))
    if area < syntax.pixels_min:
        scale = math.sqrt(syntax.pixels_min / whole)
        return (math.ceil(height * scale / factor) * factor,
                math.ceil(width * scale / factor) * factor)
    return sides


def capped(height: int, width: int, syntax: ImageSyntax) -> tuple[int, int]:
    """Sides shrunk into the limits of patches, never enlarged."""
    patch, longest = syntax.patch, syntax.cap_side_patches * syntax.patch
    count = max(1, height // patch) * max(1, width // patch)
    scale = min(1.0, math.sqrt(syntax.cap_patches / count), longest / height, longest / width)
    return (min(max(1, int(height * scale)), longest), min(max(1, int(width * scale)), longest))
