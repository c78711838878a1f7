"""What each host operation of a manifest touches, as data: which fields name buffers, and how.

A role says what a field may name:
    read     an operand of STATE, SCRATCH, STAGING or COMPLETION memory
    index    the same, of i32 elements
    write    an operand of STATE, SCRATCH or COMPLETION memory
    update   the same, read before it is written
    weight   the number of a WEIGHT buffer
    cache    the number of a CACHE buffer that is read
    store    the number of a CACHE buffer that is written
`name?flag` is there only when the message's bool `flag` is set.
"""

from dataclasses import dataclass

READ, WRITE, READ_WRITE = 1, 2, 3  # numbers of the contract's Access
ROLE_ACCESS = {"read": READ, "index": READ, "write": WRITE, "update": READ_WRITE, "weight": READ,
               "cache": READ, "store": WRITE}
EVERY_PLANE = ("copy_pages",)  # operations that read and write every CACHE buffer


@dataclass(frozen=True)
class Touch:
    """One field of an operation that names a buffer."""

    field: str
    role: str
    flag: str  # empty: always there


_DECLARED = {
    "scatter_rows": "read:source index:slot write:destination",
    "fill_rows": "index:slot write:destination",
    "update_page_table": "index:count index:updates write:table",
    "copy_pages": "index:count index:pairs",
    "select_tokens": "index:staged?has_staged index:pending index:slot index:lane write:output",
    "embed": "index:index weight:table write:output update:output?accumulate",
    "normalise": "read:input write:output weight:weight weight:bias?has_bias",
    "product": "read:input weight:weight write:output weight:bias?has_bias "
               "update:output?accumulate",
    "rotary": "update:operand index:position weight:frequencies",
    "cache_write": "read:key read:value index:position index:lane index:slot index:table "
                   "store:key_cache store:value_cache",
    "attention": "read:query write:output index:position index:lane index:slot index:table "
                 "cache:key_cache cache:value_cache index:query_start index:query_length",
    "activation": "read:gate read:up?has_up write:output",
    "select_rows": "read:input index:index write:output",
    "adjust_logits": "update:logits index:slot index:histogram read:repetition read:presence "
                     "read:frequency index:bias_tokens read:bias_values index:bias_count "
                     "index:stop_tokens index:minimum index:generated update:status "
                     "read:mask?has_mask",
    "sample": "read:logits index:slot read:temperature read:top_p read:min_p index:top_k read:seed "
              "index:position index:sample_row index:top_count write:output write:logprob "
              "write:top_tokens write:top_logprobs update:status",
    "advance": "index:sampled index:slot index:generation index:consumed index:query_length "
               "write:pending update:histogram update:generated index:limit index:minimum "
               "index:stop_tokens update:status",
    "draft": "index:slot index:generation index:consumed index:query_start index:query_length "
             "index:position index:pending index:candidate_tokens?has_candidates "
             "index:candidate_count?has_candidates index:candidate_generation?has_candidates "
             "index:candidate_endpoint?has_candidates update:rows update:drawn write:count",
    "verify": "index:rows index:query_start index:query_length",
    "score": "read:logits index:target write:output",
    "recurrent_scan": "read:query read:key read:value read:gate weight:rate weight:bias "
                      "read:strength?has_strength update:state index:state_row index:query_start "
                      "index:query_length write:output",
    "causal_convolution": "read:input write:output weight:taps weight:bias?has_bias update:state "
                          "index:state_row index:query_start index:query_length",
    "copy_state_rows": "index:source_row index:destination_row read:source update:destination",
    "copy_partial_page": "index:row index:slot index:consumed index:query_length index:table "
                         "cache:cache update:storage store:cache?restore",
}


def _touch(word: str) -> Touch:
    role, name = word.split(":")
    field, _, flag = name.partition("?")
    return Touch(field, role, flag)


OPERATIONS: dict[str, tuple[Touch, ...]] = {
    name: tuple(_touch(word) for word in words.split()) for name, words in _DECLARED.items()}
