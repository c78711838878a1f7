"""One image, prepared: resized pixels, what they are called in the cache, and patches.

Patches are those of the image processors of Hugging Face transformers, bit for bit where they
resize with Pillow."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.frontend.images.decoding import Fetch, decode, read_bytes, refuse
from helios_dod.frontend.images.grid import Grid, GridError, grid_of
from helios_dod.frontend.images.syntax import ImageSyntax, PatchOrder

CHANNELS = 3


@dataclass(frozen=True)
class Picture:
    """pixels: u8 [height, width, channel] of the grid. digest: 64 bits of what an encoder sees."""

    grid: Grid
    pixels: np.ndarray
    digest: int
    syntax: ImageSyntax

    def patches(self) -> np.ndarray:
        """f32 [patches, channel x temporal_patch x patch x patch], normalised."""
        syntax, (rows, columns), side = self.syntax, self.grid.patches, self.syntax.patch
        merged = syntax.merged_side
        scaled = np.arange(256, dtype=np.float64)[:, None] / 255
        values = ((scaled - syntax.mean) / syntax.deviation).astype(np.float32)
        shape = (rows // merged, merged, side, columns // merged, merged, side, CHANNELS)
        pixels = self.pixels.reshape(shape)
        order = (0, 3, 1, 4) if syntax.order == PatchOrder.MERGED_BLOCKS else (0, 1, 3, 4)
        blocks = pixels.transpose(*order, 6, 2, 5).reshape(rows * columns, CHANNELS, 1, side, side)
        one = np.empty(blocks.shape, np.float32)
        for channel in range(CHANNELS):
            one[:, channel] = values[blocks[:, channel], channel]
        return np.repeat(one, syntax.temporal_patch, axis=2).reshape(rows * columns, -1)


def prepare(image: Any, syntax: ImageSyntax) -> Picture:
    """A PIL image in RGB, resized into its grid. Raises GridError."""
    from PIL import Image

    grid = grid_of(image.height, image.width, syntax)
    height, width = grid.resized
    if (image.height, image.width) != grid.resized:
        image = image.resize((width, height), Image.Resampling[syntax.filter.upper()])
    pixels = np.asarray(image, dtype=np.uint8)
    if grid.padded != grid.resized:
        canvas = np.full((*grid.padded, CHANNELS), syntax.pad_value, np.uint8)
        canvas[:height, :width] = pixels
        pixels = canvas
    content = hashlib.blake2b(np.array(pixels.shape, "<i8").tobytes(), digest_size=8)
    content.update(np.ascontiguousarray(pixels).data)
    return Picture(grid, pixels, int.from_bytes(content.digest(), "little"), syntax)


def picture_of(url: str, field: str, syntax: ImageSyntax, fetch: Fetch | None) -> Picture:
    """The image at a URL of a request. field: where it stands. Raises RequestError."""
    image = decode(read_bytes(url, field, fetch), field)
    try:
        return prepare(image, syntax)
    except GridError as error:
        raise refuse(field, str(error)) from None
