"""Table declarations -> one aligned structured dtype. The only code that knows layout.

A table is a class whose annotations are columns:

    @table(rows="requests_max")
    class Requests:
        state: u8
        tokens: i32["context_max"]       # a sub-array a row
        free_count: scalar(i32)          # one value for the table, not a column

Names of capacities are attributes of `limits.Limits` (or of the module, for fixed ones). Columns
are 64-byte aligned, so that neighbouring columns never share a cache line.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helios_dod import limits as limits_module
from helios_dod.limits import Limits

COLUMN_ALIGN = 64


@dataclass(frozen=True)
class Column:
    """A column's element type, its extents after the row axis, and whether it has a row axis."""

    kind: str
    extents: tuple[str | int, ...] = ()
    per_row: bool = True

    def __getitem__(self, extents: str | int | tuple[str | int, ...]) -> "Column":
        return Column(self.kind, extents if isinstance(extents, tuple) else (extents,))


u8, u16, u32, u64 = Column("u1"), Column("u2"), Column("u4"), Column("u8")
i32, i64 = Column("i4"), Column("i8")


def scalar(column: Column) -> Column:
    """A value, or with extents an array, of the table as a whole."""
    return Column(column.kind, column.extents, per_row=False)


@dataclass(frozen=True)
class Table:
    """A declared table: its rows capacity (name or None) and its columns in order."""

    name: str
    rows: str | None
    columns: dict[str, Column]
    declaration: type


def table(rows: str | None = None) -> Callable[[type], Table]:
    """Class decorator: turns annotations into a Table named by the class in lower case."""

    def declare(declaration: type) -> Table:
        columns = dict(declaration.__annotations__)
        for name, column in columns.items():
            assert isinstance(column, Column), f"{declaration.__name__}.{name}: not a column"
        return Table(declaration.__name__.lower(), rows, columns, declaration)

    return declare


def extent(name: str | int, limits: Limits) -> int:
    """Resolves a capacity name against a size, then against the fixed capacities."""
    if isinstance(name, int):
        return name
    found = getattr(limits, name, None)
    return int(found if found is not None else getattr(limits_module, name))


def table_dtype(declared: Table, limits: Limits) -> np.dtype:
    """Aligned dtype of one table; padding between columns is never a field."""
    names, formats, offsets, cursor = [], [], [], 0
    for name, column in declared.columns.items():
        shape = tuple(extent(e, limits) for e in column.extents)
        if column.per_row and declared.rows is not None:
            shape = (extent(declared.rows, limits), *shape)
        element = np.dtype(column.kind)
        size = element.itemsize * int(np.prod(shape, dtype=np.int64))
        align = COLUMN_ALIGN if size >= COLUMN_ALIGN else element.itemsize
        cursor = -(-cursor // align) * align
        names.append(name)
        formats.append((element, shape) if shape else element)
        offsets.append(cursor)
        cursor += size
    size = max(COLUMN_ALIGN, -(-cursor // COLUMN_ALIGN) * COLUMN_ALIGN)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size},
                    align=True)


def world_dtype(tables: tuple[Table, ...], limits: Limits) -> np.dtype:
    """The nested dtype of the whole world: one field a table."""
    names, formats, offsets, cursor = [], [], [], 0
    for declared in tables:
        dtype = table_dtype(declared, limits)
        names.append(declared.name)
        formats.append(dtype)
        offsets.append(cursor)
        cursor += dtype.itemsize
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": cursor},
                    align=True)
