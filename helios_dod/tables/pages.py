"""Logical pages of the attention history."""

from helios_dod.schema import i32, i64, scalar, table, u8


@table(rows="pages_max")
class Pages:
    """One row per logical page. A PRIVATE page has one owner slot; an IMMUTABLE one is counted.

    Invariant: FREE + PRIVATE + IMMUTABLE rows = page_count; `promised_count` pages of running
    requests' needs are not yet taken, and never exceed `free_count`.
    """

    state: u8
    group: u8  # page group of the histories it holds
    references: i32
    owner: i32  # slot or NO_ROW
    parent: i32
    token_count: i32
    used_tick: i64
    free: scalar(i32["pages_max"])
    free_count: scalar(i32)
    page_count: scalar(i32)  # pages that the backed cache has
    promised_count: scalar(i32)
