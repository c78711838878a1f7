"""What each host operation of a manifest touches, as data: which fields name buffers, and what such
a buffer must be. A line of a declaration is `role field rows columns type values`.

role
    read     an operand of STATE, SCRATCH or STAGING memory
    index    the same, of i32 elements
    write    an operand of STATE or SCRATCH memory
    update   the same, read before it is written
    report   the same, or the COMPLETION column of REPORTS
    weight   the number of a WEIGHT buffer of plain values
    matrix   the number of a WEIGHT buffer in panels
    table    the number of a WEIGHT buffer, plain or in panels
    cache    the number of a CACHE buffer that is read
    store    the number of a CACHE buffer that is written
field    `name`, or `name?flag`: there only when the message's bool `flag` is set
rows     what axis 0 must hold: `rows`, those of the operation's domain; `spans`, one for each lane
         of that domain; `lanes`, `packed` tokens, `one`, `updates`; `@name`, every row that a value
         of the index operand `name` may be; `-`, what is said elsewhere
columns  elements of a row: a number, at least one (`>=8`), a product of fields of the operation
         (`heads*head`), a width of VALUES, that of another operand (`=input`), or `any`. Of a
         weight: all its elements
type     of elements; `=name`: that of another operand; `word`: of 4 bytes; `bytes`: no i32
values   of i32 elements. Read: what they may be. Written: what they are afterwards. See values.py
"""

from dataclasses import dataclass

READ, WRITE, READ_WRITE = 1, 2, 3  # numbers of the contract's Access
ROLE_ACCESS = {"read": READ, "index": READ, "write": WRITE, "update": READ_WRITE, "report": WRITE,
               "weight": READ, "matrix": READ, "table": READ, "cache": READ, "store": WRITE}
EVERY_PLANE = ("copy_pages",)  # operations that read and write every CACHE buffer of page group 0
BY_NUMBER = ("weight", "matrix", "table", "cache", "store")  # the others are operands
ROUNDS = ("draft", "verify", "commit_state_rows")  # operations of speculative programs alone
VERIFIED = ("adjust_logits", "sample", "advance")  # what stands behind a Verify
TIMED = ("mark_time", "choose_fastest")  # operations of tuning graphs alone
REPORTS = {  # completion column, a proto CompletionField, of each report
    ("sample", "logprob"): 11, ("sample", "top_tokens"): 12, ("sample", "top_logprobs"): 13,
    ("score", "output"): 14}
# The domain of operations that have no `rows`, or may leave it out.
DOMAINS = {"select_tokens": "packed", "rotary": "packed", "cache_write": "packed",
           "attention": "packed", "score": "packed", "recurrent_scan": "packed",
           "causal_convolution": "packed", "adjust_logits": "sampled", "sample": "sampled"}
ROW_DOMAINS = {1: "packed", 2: "lanes", 3: "sampled", 4: "drawn", 5: "trial"}  # by proto RowDomain


@dataclass(frozen=True)
class Touch:
    """One field of an operation that names a buffer."""

    role: str
    field: str
    flag: str  # empty: always there
    rows: str
    columns: str
    type: str
    values: str  # empty: of no i32


_DECLARED = {
    "scatter_rows": """
        read    source                      lanes     any       any
        index   slot                        lanes     1         i32      rows
        write   destination                 @slot     =source   =source  copy""",
    "fill_rows": """
        index   slot                        lanes     1         i32      rows
        write   destination                 @slot     any       word     fill""",
    "update_page_table": """
        index   count                       one       1         i32      update_count
        index   updates                     updates   3         i32      updates
        write   table                       -         any       i32      page""",
    "copy_pages": """
        index   count                       one       1         i32      copy_count
        index   pairs                       updates   2         i32      copies""",
    "select_tokens": """
        index   staged?has_staged           packed    1         i32      token?
        index   pending                     @slot     1         i32      token
        index   slot                        @lane     1         i32      rows
        index   lane                        packed    1         i32      rows
        write   output                      packed    1         i32      token""",
    "embed": """
        index   index                       rows      1         i32      rows
        table   table                       @index    =output   -
        write   output                      rows      any       f32
        update  output?accumulate           rows      any       f32""",
    "normalise": """
        read    input                       rows      any       f32
        write   output                      rows      =input    f32
        weight  weight                      -         group     f32
        weight  bias?has_bias               -         group     f32""",
    "product": """
        read    input                       rows      columns   f32
        matrix  weight                      -         any       -
        write   output                      rows      outputs   f32
        weight  bias?has_bias               -         outputs   f32
        update  output?accumulate           rows      outputs   f32
        index   selected?has_selected       one       >=3       i32      any""",
    "rotary": """
        update  operand                     rows      any       f32
        index   position                    rows      1         i32      any
        weight  frequencies                 -         any       f32""",
    "cache_write": """
        read    key                         rows      any       f32
        read    value                       rows      =key      f32
        index   position                    rows      1         i32      position
        index   lane                        rows      1         i32      rows
        index   slot                        @lane     1         i32      rows
        index   table                       @slot     any       i32      page
        store   key_cache                   -         any       -
        store   value_cache                 -         any       -""",
    "attention": """
        read    query                       rows      heads*head  f32
        write   output                      rows      heads*head  f32
        index   position                    rows      1         i32      position
        index   lane                        rows      1         i32      rows
        index   slot                        spans     1         i32      rows
        index   table                       @slot     any       i32      page
        cache   key_cache                   -         any       -
        cache   value_cache                 -         any       -
        index   query_start                 spans     1         i32      start
        index   query_length                spans     1         i32      length""",
    "activation": """
        read    gate                        rows      any       f32
        read    up?has_up                   rows      =gate     f32
        write   output                      rows      =gate     f32""",
    "select_rows": """
        read    input                       @index    any       any
        index   index                       rows      1         i32      rows
        write   output                      rows      =input    =input   copy""",
    "adjust_logits": """
        update  logits                      rows      vocabulary  f32
        index   slot                        rows      1         i32      rows
        index   histogram                   @slot     vocabulary  i32    any
        read    repetition                  @slot     1         f32
        read    presence                    @slot     1         f32
        read    frequency                   @slot     1         f32
        index   bias_tokens                 @slot     >=biases  i32      token
        read    bias_values                 @slot     >=biases  f32
        index   bias_count                  @slot     1         i32      bias_count
        index   stop_tokens                 @slot     any       i32      token?
        index   minimum                     @slot     1         i32      any
        index   generated                   @slot     1         i32      any
        update  status                      @slot     1         i32      number
        read    mask?has_mask               rows      >=mask    u32""",
    "sample": """
        read    logits                      rows      vocabulary  f32
        index   slot                        rows      1         i32      rows
        read    temperature                 @slot     1         f32
        read    top_p                       @slot     1         f32
        read    min_p                       @slot     1         f32
        index   top_k                       @slot     1         i32      any
        read    seed                        @slot     seed      seed
        index   position                    @sample_row  1      i32      any
        index   sample_row                  rows      1         i32      rows
        index   top_count                   @slot     1         i32      any
        write   output                      rows      1         i32      token?
        report  logprob                     reports   1         f32
        report  top_tokens                  reports   >=top     i32      token
        report  top_logprobs                reports   >=top     f32
        update  status                      @slot     1         i32      number""",
    "advance": """
        index   sampled                     lanes     1         i32      token?
        index   slot                        lanes     1         i32      rows
        index   generation                  lanes     1         i32      any
        index   consumed                    lanes     1         i32      any
        index   query_length                lanes     1         i32      any
        write   pending                     @slot     1         i32      token
        update  histogram                   @slot     vocabulary  i32    number
        update  generated                   @slot     1         i32      number
        index   limit                       @slot     1         i32      any
        index   minimum                     @slot     1         i32      any
        index   stop_tokens                 @slot     any       i32      any
        update  status                      @slot     1         i32      number""",
    "draft": """
        index   slot                        lanes     1         i32      slot
        index   generation                  lanes     1         i32      any
        index   consumed                    lanes     1         i32      any
        index   query_start                 lanes     1         i32      start
        index   query_length                lanes     1         i32      length
        index   position                    packed    1         i32      position
        index   pending                     @slot     1         i32      token
        index   candidate_tokens?has_candidates      lanes  >=drafts  i32  token
        index   candidate_count?has_candidates       lanes  1   i32      candidates
        index   candidate_generation?has_candidates  lanes  1   i32      any
        index   candidate_endpoint?has_candidates    lanes  1   i32      any
        update  rows                        packed    3         i32      target_rows
        update  drawn                       lanes     8         i32      drawn_lanes
        write   count                       one       1         i32      drawn_count
        index   state_row?has_state_row     lanes     1         i32      state_row
        write   drawn_state_row?has_state_row  lanes  1         i32      drawn_state_row""",
    "verify": """
        index   rows                        packed    3         i32      any
        index   query_start                 lanes     1         i32      start
        index   query_length                lanes     1         i32      length
        read    masks?has_masks             lanes     >=mask    u32""",
    "score": """
        read    logits                      packed    vocabulary  f32
        index   target                      packed    1         i32      any
        report  output                      packed    1         f32""",
    "recurrent_scan": """
        read    query                       rows      key_heads*key_columns  f32
        read    key                         rows      key_heads*key_columns  f32
        read    value                       rows      heads*value_columns    f32
        read    gate                        rows      any       f32
        weight  rate                        -         =gate     f32
        weight  bias                        -         =gate     f32
        read    strength?has_strength       rows      heads     f32
        update  state                       @state_row  heads*key_columns*value_columns  f32
        index   state_row                   spans     1         i32      rows
        index   query_start                 spans     1         i32      start
        index   query_length                spans     1         i32      length
        write   output                      rows      heads*value_columns    f32""",
    "causal_convolution": """
        read    input                       rows      any       f32
        write   output                      rows      =input    f32
        weight  taps                        -         any       f32
        weight  bias?has_bias               -         =input    f32
        update  state                       @state_row  any     f32
        index   state_row                   spans     1         i32      rows
        index   query_start                 spans     1         i32      start
        index   query_length                spans     1         i32      length""",
    "commit_state_rows": """
        index   state_row                   lanes     1         i32      state_row
        update  state                       @state_row  any     any""",
    "copy_state_rows": """
        index   source_row                  lanes     1         i32      rows?
        index   destination_row             lanes     1         i32      rows?
        read    source                      @source_row  any    any
        update  destination                 @destination_row  =source  =source  copy""",
    "copy_partial_page": """
        index   row                         lanes     1         i32      rows?
        index   slot                        lanes     1         i32      rows
        index   consumed                    lanes     1         i32      consumed
        index   query_length                lanes     1         i32      length
        index   table                       @slot     any       i32      page
        cache   cache                       -         any       -
        update  storage                     @row      any       bytes
        store   cache?restore               -         any       -""",
    "mark_time": """
        write   output                      one       1         i64""",
    "choose_fastest": """
        read    marks                       one       >=2       i64
        update  best                        one       any       i64
        write   selected                    one       1         i32      number""",
}


def _touch(line: str) -> Touch:
    role, name, rows, columns, type_, *values = line.split()
    field, _, flag = name.partition("?")
    return Touch(role, field, flag, rows, columns, type_, *values or ("",))


OPERATIONS: dict[str, tuple[Touch, ...]] = {
    name: tuple(_touch(line) for line in lines.strip().splitlines())
    for name, lines in _DECLARED.items()}
