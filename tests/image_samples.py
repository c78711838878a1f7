"""Images made by a formula: the same for a recorded processor and for ours."""

import numpy as np

SIDES = ((56, 84), (61, 45), (200, 333))


def sample(height: int, width: int) -> np.ndarray:
    """u8 [height, width, 3]: gradients and edges, different in each channel."""
    rows, columns = np.mgrid[:height, :width]
    red = (rows * 7 + columns * 3) % 256
    green = np.where((rows // 9 + columns // 7) % 2, 230, 20) + rows % 17
    blue = (rows * columns) % 251
    return np.stack([red, green, blue], axis=2).astype(np.uint8)
