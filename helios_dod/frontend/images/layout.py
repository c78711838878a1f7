"""A prompt with its images laid in: token ids, spans, positions, and which feature a token is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from helios_dod.frontend.images.pictures import Picture
from helios_dod.frontend.images.syntax import Arrangement, ImageSyntax

TENSORS = ("patches", "grid")  # what programs may bind by name


@dataclass(frozen=True)
class Placed:
    """An image at its place. Ranges of tokens are first and end."""

    picture: Picture
    features: tuple[int, int]  # separators of rows included
    span: tuple[int, int]  # that no chunk and no cached prefix parts


@dataclass(frozen=True)
class Layout:
    """ids: int32 [tokens]. boundaries: tokens before each place where others may part."""

    ids: np.ndarray
    boundaries: tuple[int, ...] = ()
    images: tuple[Placed, ...] = ()
    syntax: ImageSyntax | None = None

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """Of each image: first token, end, digest of its content."""
        return tuple((*placed.span, placed.picture.digest) for placed in self.images)

    def feature_index(self) -> np.ndarray:
        """int32 [tokens]: the row of its image's features that a token stands for, else -1."""
        index = np.full(len(self.ids), -1, np.int32)
        for placed in self.images:
            for at, row in enumerate(feature_rows(placed.picture), placed.features[0]):
                index[at] = row
        return index

    def context_index(self) -> np.ndarray:
        """int32 [tokens]: how many tokens of its image's span come before it, -1 outside."""
        index = np.full(len(self.ids), -1, np.int32)
        for placed in self.images:
            first, end = placed.span
            index[first:end] = np.arange(end - first)
        return index

    def positions(self) -> tuple[np.ndarray, int]:
        """int32 [axes, tokens], and what to add to the number of a later token.

        One axis counts tokens. With three (time, row, column) text counts alike on all of them; an
        image begins one past the largest position so far and the next text one past its own.
        Source: `get_rope_index` of Hugging Face transformers."""
        count = len(self.ids)
        grid = self.syntax is not None and self.syntax.arrangement == Arrangement.FEATURE_GRID
        if not grid:
            return np.arange(count, dtype=np.int32)[None], 0
        positions = np.empty((3, count), np.int32)
        at = base = 0
        for placed in self.images:
            first, end = placed.features
            positions[:, at:first] = np.arange(first - at) + base
            base += first - at
            rows, columns = placed.picture.grid.features
            positions[0, first:end] = base
            positions[1, first:end] = np.repeat(np.arange(rows), columns) + base
            positions[2, first:end] = np.tile(np.arange(columns), rows) + base
            base, at = base + max(rows, columns), end
        positions[:, at:] = np.arange(count - at) + base
        return positions, base - at

    def tensors(self) -> dict[str, np.ndarray]:
        """Named outputs: `patches` f32 of all images, `grid` int32 [images, 3] of time, rows and
        columns in patches."""
        assert self.images
        pictures = [placed.picture for placed in self.images]
        return {"patches": np.concatenate([picture.patches() for picture in pictures]),
                "grid": np.array([(1, *picture.grid.patches) for picture in pictures], np.int32)}


def feature_rows(picture: Picture) -> list[int]:
    """The feature of each token of an image's features; -1 is a separator."""
    if picture.syntax.arrangement != Arrangement.FEATURE_ROWS:
        return list(range(picture.grid.feature_count))
    rows, columns = picture.grid.features
    return [feature for row in range(rows)
            for feature in (*range(row * columns, (row + 1) * columns), -1)]


def pieces(parts: Sequence[int | str], picture: Picture,
           encode: Callable[[str], list[int]]) -> list[int]:
    """Tokens of what lies around an image's features."""
    height, width = picture.grid.resized
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += encode(part.replace("{width}", str(width)).replace("{height}", str(height)))
    return ids


def span_of(ids: Sequence[int], features: tuple[int, int], low: int, high: int,
            syntax: ImageSyntax) -> tuple[int, int]:
    """The span around features that lie between `low` and `high`: from an opening token to its
    closing one if both are there, else the features alone."""
    first, end = features
    for opening, closing in syntax.spans:
        starts = [at for at in range(low, first) if ids[at] == opening]
        ends = [at for at in range(end, high) if ids[at] == closing]
        if starts and ends:
            return starts[-1], ends[0] + 1
    return features


def lay(ids: Sequence[int], pictures: Sequence[Picture], syntax: ImageSyntax,
        encode: Callable[[str], list[int]], boundaries: Sequence[int] = ()) -> Layout:
    """Expands placeholders; as many as there are pictures. encode: of text around features.
    boundaries: of the layout, counted in `ids`."""
    laid: list[int] = []
    places = [0]  # in `laid`, of each of `ids`
    features: list[tuple[int, int]] = []
    for token in ids:
        if token != syntax.placeholder_token:
            laid.append(token)
            places.append(len(laid))
            continue
        picture = pictures[len(features)]
        laid += pieces(syntax.before, picture, encode)
        first = len(laid)
        laid += [syntax.separator_token if row < 0 else syntax.feature_token
                 for row in feature_rows(picture)]
        features.append((first, len(laid)))
        laid += pieces(syntax.after, picture, encode)
        places.append(len(laid))
    assert len(features) == len(pictures)
    placed, low = [], 0
    for i, own in enumerate(features):
        high = features[i + 1][0] if i + 1 < len(features) else len(laid)
        span = span_of(laid, own, low, high, syntax)
        placed.append(Placed(pictures[i], own, span))
        low = span[1]
    parted = tuple(places[at] for at in boundaries)
    return Layout(np.array(laid, dtype=np.int32), parted, tuple(placed), syntax)
