"""Charts as SVG, and a page that holds them: one file that needs nothing else."""


from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10

import numpy as np

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 44
FEW = 24  # points of a line that are marked
COLOURS = ("#2563c9", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#4b5563")
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #6b7280; --line: #d7dae0; --paper: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --soft: #9aa1ad; --line: #3a3f48; --paper: #17181b } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem }
p.note, figcaption { color: var(--soft); margin: .2rem 0 .6rem }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1.4rem }
figure { margin: 0 } figcaption { font-size: .92rem } svg { width: 100%; height: auto }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
svg text.name { fill: var(--ink) } .grid { stroke: var(--line) }
table { border-collapse: collapse; margin: .4rem 0 } th { text-align: left; font-weight: 600 }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line) }
td.n { text-align: right; font-variant-numeric: tabular-nums } tr.best td { font-weight: 650 }
"""


@dataclass(frozen=True)
class Series:
    """Points of one name. mark: "line", "step" or "dots"."""

    name: str
    x: np.ndarray
    y: np.ndarray
    mark: str = "line"


@dataclass(frozen=True)
class Bar:
    """A span of time on a named track. kind: which colour and legend it has."""

    track: str
    kind: str
    start: float
    end: float
    label: str = ""


@dataclass(frozen=True)
class Axis:
    """One axis: its title, its extent in values, and whether it is logarithmic."""

    title: str
    low: float
    high: float
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """0 to 1."""
        if self.log:
            low, high = log10(self.low), log10(self.high)
            return (np.log10(np.maximum(values, self.low)) - low) / max(high - low, 1e-9)
        return (values - self.low) / max(self.high - self.low, 1e-12)

    def ticks(self) -> list[float]:
        """Round values inside, about five of them."""
        if self.log:
            first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
            if last - first >= 1:
                return [10.0**power for power in range(first, last + 1)]
        span = self.high - self.low
        size = 10 ** floor(log10(span / 4)) if span > 0 else 1.0
        size *= next(factor for factor in (1, 2, 5, 10) if span / (size * factor) <= 6)
        first = ceil(self.low / size - 1e-9)
        return [n * size for n in range(first, floor(self.high / size + 1e-9) + 1)]


def axis(title: str, values: Sequence[np.ndarray], log: bool = False, zero: bool = True) -> Axis:
    """An axis that holds all the values; logarithmic only where they are all above 0."""
    joined = np.concatenate([np.asarray(part, float) for part in values] or [np.zeros(0)])
    joined = joined[np.isfinite(joined)]
    if log:
        joined = joined[joined > 0]
    if len(joined) == 0:
        return Axis(title, 0.0, 1.0)
    low, high = float(joined.min()), float(joined.max())
    if log:
        return Axis(title, low * 0.9, max(high * 1.1, low * 1.2), True)
    low = min(low, 0.0) if zero else low
    return Axis(title, low, high + (0.05 * (high - low) or 1.0))


def number(value: float) -> str:
    """Short, for ticks and tables."""
    if not isfinite(value):
        return "-"
    if value and not 0.001 <= abs(value) < 1e6:
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _frame(x: Axis, y: Axis | None) -> list[str]:
    parts = []
    for at, value in zip(x.place(np.array(x.ticks(), float)), x.ticks(), strict=True):
        left = LEFT + at * (WIDTH - LEFT - RIGHT)
        parts.append(f'<line class="grid" x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" '
                     f'y2="{HEIGHT - BOTTOM}"/><text x="{left:.1f}" y="{HEIGHT - BOTTOM + 16}" '
                     f'text-anchor="middle">{number(value)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" '
                 f'text-anchor="middle">{escape(x.title)}</text>')
    if y is None:
        return parts
    for at, value in zip(y.place(np.array(y.ticks(), float)), y.ticks(), strict=True):
        down = HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" '
                     f'y2="{down:.1f}"/><text x="{LEFT - 6}" y="{down + 4:.1f}" '
                     f'text-anchor="end">{number(value)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="13" y="{middle}" text-anchor="middle" '
                 f'transform="rotate(-90 13 {middle})">{escape(y.title)}</text>')
    return parts


def _legend(names: Sequence[tuple[str, str]]) -> str:
    return " ".join(f'<span style="color:{colour}">&#9632;</span> {escape(name)}&ensp;'
                    for name, colour in names)


def _figure(title: str, parts: Sequence[str], legend: str) -> str:
    return (f'<figure><figcaption><b>{escape(title)}</b><br>{legend}</figcaption>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
            f'{"".join(parts)}</svg></figure>')


def chart(title: str, series: Sequence[Series], x: Axis, y: Axis,
          levels: Sequence[tuple[str, float]] = ()) -> str:
    """Lines and dots over two axes; levels: named horizontal lines."""
    parts, names = _frame(x, y), []
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        keep = np.isfinite(one.x) & np.isfinite(one.y)
        left = LEFT + x.place(one.x[keep]) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - np.clip(y.place(one.y[keep]), 0, 1) * (HEIGHT - TOP - BOTTOM)
        points = list(zip(left.tolist(), down.tolist(), strict=True))
        if one.mark == "dots":
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{colour}" '
                      'fill-opacity=".45"/>' for a, b in points]
        elif points:
            if one.mark == "step":
                corners = [(c, b) for (_, b), (c, _) in pairwise(points)]
                points = [p for pair in zip(points, [*corners, points[-1]], strict=True)
                          for p in pair]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                         'stroke-width="1.8"/>')
            if len(points) <= FEW:
                parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>'
                          for a, b in points]
        names.append((one.name, colour))
    for name, value in levels:
        down = HEIGHT - BOTTOM - float(y.place(np.array([value]))[0]) * (HEIGHT - TOP - BOTTOM)
        if TOP <= down <= HEIGHT - BOTTOM:
            parts.append(f'<line x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}" '
                         'stroke="var(--soft)" stroke-dasharray="5 4"/>'
                         f'<text class="name" x="{LEFT + 6}" y="{down - 5:.1f}">{escape(name)}'
                         '</text>')
    return _figure(title, parts, _legend(names))


def timeline(title: str, bars: Sequence[Bar], unit: str, kinds: Sequence[str]) -> str:
    """Spans of time, a row a track. kinds: all there may be; colours are in their order."""
    tracks = list(dict.fromkeys(bar.track for bar in bars))
    x = Axis(unit, min(bar.start for bar in bars), max(bar.end for bar in bars))
    parts = _frame(x, None)
    high = (HEIGHT - TOP - BOTTOM) / len(tracks)
    between = min(8.0, high / 3)
    for row, track in enumerate(tracks):
        parts.append(f'<text class="name" x="{LEFT - 6}" y="{TOP + (row + .5) * high + 4:.1f}" '
                     f'text-anchor="end">{escape(track)}</text>')
    for bar in bars:
        left, right = (LEFT + x.place(np.array([bar.start, bar.end]))
                       * (WIDTH - LEFT - RIGHT)).tolist()
        colour = COLOURS[kinds.index(bar.kind) % len(COLOURS)]
        down = TOP + tracks.index(bar.track) * high + between / 2
        parts.append(f'<rect x="{left:.2f}" y="{down:.1f}" '
                     f'width="{max(right - left - .4, .4):.2f}" height="{high - between:.1f}" '
                     f'fill="{colour}" rx="1.5"><title>{escape(bar.label or bar.kind)}</title>'
                     '</rect>')
    shown = {bar.kind for bar in bars}
    return _figure(title, parts, _legend([(kind, COLOURS[i % len(COLOURS)])
                                          for i, kind in enumerate(kinds) if kind in shown]))


def cumulative(name: str, values: np.ndarray) -> Series:
    """The share of values that are at most x, at no more than 400 points."""
    values = np.sort(values)
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), 400)).astype(int)) if len(
        values) else np.zeros(0, int)
    return Series(name, values[at].astype(float), (at + 1) / max(len(values), 1))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], best: int = -1) -> str:
    """Cells as given; numbers to the right. best: a row that stands out."""
    lines = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"]
    for index, row in enumerate(rows):
        cells = "".join(
            f'<td class="n">{number(float(cell))}</td>' if isinstance(cell, int | float)
            and not isinstance(cell, bool) else f"<td>{escape(str(cell))}</td>" for cell in row)
        lines.append(f'<tr class="best">{cells}</tr>' if index == best else f"<tr>{cells}</tr>")
    return "<table>" + "".join(lines) + "</table>"


def page(title: str, note: str, sections: Sequence[tuple[str, str]]) -> str:
    """A whole document. sections: (heading, HTML)."""
    body = "".join(f"<h2>{escape(name)}</h2>{content}" for name, content in sections)
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
            f'<h1>{escape(title)}</h1><p class="note">{escape(note)}</p>{body}</html>\n')
