"""The integer vocabulary of tables and systems. Numbers that also stand on the wire equal those of
proto/*.proto; a test compares them (systems never import protobuf)."""

# Row 0 of every state column means an unused row.
FREE = 0

# requests.state
WAITING = 1  # accepted, holds no slot
RUNNING = 2  # holds a slot
FINISHED = 3  # holds nothing but tokens that its frontend has not drained

# requests.finish: how a request ended (0: it has not)
FINISH_EOS = 1
FINISH_LIMIT = 2
FINISH_STOP_TOKEN = 3
FINISH_CANCELLED = 4
FINISH_NON_FINITE = 5
FINISH_DEADLINE = 6
FINISH_DEVICE_ERROR = 7
FINISH_STOP_STRING = 8
FINISH_STOP_SEQUENCE = 9
FINISH_GRAMMAR = 10  # requests.failure says why: an ANSWER_ term

# grammars.state
GRAMMAR_PENDING = 1  # the worker computes the next mask
GRAMMAR_READY = 2
GRAMMAR_FAILED = 3  # the request was ended

# grammars.job
JOB_NONE = 0
JOB_START = 1  # compile, take the tokens so far, compute a mask
JOB_ADVANCE = 2  # take new tokens, compute a mask, and those behind drafts
JOB_RELEASE = 3  # forget

# grammars.answer, modulo ANSWER_STATUSES
ANSWER_READY = 1
ANSWER_NO_COMPILE = 2  # the grammar cannot be compiled
ANSWER_NO_MASK = 3  # a mask would cost more than it may
ANSWER_NO_TOKEN = 4  # an accepted token is not in the grammar
ANSWER_NO_WORKER = 5  # the worker itself failed
ANSWER_TOO_WIDE = 6  # a token leaves more ways to read the answer than the parser may hold

# slots.state
SLOT_ADMITTED = 1  # device state of the slot is not initialised yet
SLOT_PREFILL = 2  # prompt tokens remain to be submitted
SLOT_DECODE = 3  # every prompt token is submitted
SLOT_DRAINING = 4  # finished or cancelled, frames in flight still name it
SLOT_RESTORING = 5  # waits for pages of its text that are not on the device
SLOT_COPIES = 6  # initialised; a snapshot, or pages, are to be copied into its own

# pages.state
PAGE_PRIVATE = 1
PAGE_IMMUTABLE = 2
PAGE_LEAVING = 3  # immutable, being copied to host memory
PAGE_RESTORING = 4  # being copied from host memory to its place on the device
PAGE_FETCHING = 5  # being copied from disk to its place on the device
PAGE_OFFLOADED = 6  # in host memory
PAGE_SINKING = 7  # in host memory, being copied to disk
PAGE_STORED = 8  # on disk

# tiers: where pages go from the device
TIER_MEMORY = 0
TIER_DISK = 1

# copies: queues
QUEUE_MEMORY = 0  # between device and memory
QUEUE_DISK = 1  # what the disk takes part in, so that it holds up no restore from memory

# copies.kind
COPY_OFFLOAD = 1  # device -> memory
COPY_RESTORE = 2  # memory -> device
COPY_SINK = 3  # memory -> disk
COPY_FETCH = 4  # disk -> device
COPY_WINDOW_OFFLOAD = 5  # device -> memory, of page group 1
COPY_WINDOW_RESTORE = 6  # memory -> device
COPY_WINDOW_SINK = 7  # memory -> disk
COPY_WINDOW_FETCH = 8  # disk -> device

# snapshots.state
SNAPSHOT_WRITING = 1  # a program fills it
SNAPSHOT_READY = 2  # can be found

# snapshots.cause
CAUSE_PROMPT = 0  # the end of a prompt
CAUSE_PAGE = 1  # a page boundary inside a prompt
CAUSE_TURN = 2  # the end of an answer
CAUSE_BOUNDARY = 3  # a boundary endpoint of the prompt
CAUSE_ANSWER = 4  # a page boundary inside an answer

# slots.closing: the snapshot of an ended answer, or of one that goes on
CLOSING_NONE = 0
CLOSING_WAITS = 1  # its program is to be composed
CLOSING_DONE = 2
CLOSING_PAUSED = 3  # the answer waits until nothing is in flight and its program is composed
CLOSING_KEPT = 4  # that program is composed; until the answer goes on

# frames.state
FRAME_COMPOSED = 1  # lanes chosen, pages reserved
FRAME_PACKED = 2  # staging written; the engine launches it
FRAME_SUBMITTED = 3
FRAME_FINISHED = 4  # fence passed, not yet accepted
FRAME_ACCEPTED = 5  # lanes committed; freed at the end of the tick

# completions.status, one lane
STATUS_RUNNING = 0
STATUS_EOS = 1
STATUS_LIMIT = 2
STATUS_NON_FINITE = 3
STATUS_CANCELLED = 4

# programs.operation
OP_INITIALIZE = 1
OP_RESTORE = 2
OP_PREFILL = 3
OP_SCORED_PREFILL = 4
OP_RESUME = 5
OP_DECODE = 6
OP_SPECULATIVE = 7
OP_MIXED = 8
OP_IMAGE_ENCODE = 9

# bindings.source
SOURCE_SLOT = 1
SOURCE_GENERATION = 2
SOURCE_LIVE_LANES = 3
SOURCE_LIVE_PACKED = 4
SOURCE_LIVE_SAMPLED = 5
SOURCE_QUERY_LENGTH = 6
SOURCE_QUERY_START = 7
SOURCE_SAMPLE_ROW = 8
SOURCE_LANE = 9
SOURCE_SPECULATIVE_PREFIX_LIMIT = 10
SOURCE_TOKEN = 20
SOURCE_TARGET_TOKEN = 21
SOURCE_PENDING_TOKEN = 22
SOURCE_POSITION = 23
SOURCE_CONSUMED = 24
SOURCE_PAGE_UPDATE_COUNT = 30
SOURCE_PAGE_UPDATES = 31
SOURCE_PAGE_COPY_COUNT = 32
SOURCE_PAGE_COPIES = 33
SOURCE_STATE_ROW = 35
SOURCE_RESTORE_SOURCE = 36
SOURCE_SNAPSHOT_DESTINATION = 37
SOURCE_SEED = 40
SOURCE_TEMPERATURE = 41
SOURCE_TOP_P = 42
SOURCE_MIN_P = 43
SOURCE_TOP_K = 44
SOURCE_REPETITION_PENALTY = 45
SOURCE_PRESENCE_PENALTY = 46
SOURCE_FREQUENCY_PENALTY = 47
SOURCE_OUTPUT_LIMIT = 48
SOURCE_OUTPUT_MINIMUM = 49
SOURCE_STOP_TOKENS = 50
SOURCE_TOP_LOGPROBS = 51
SOURCE_BIAS_COUNT = 52
SOURCE_BIAS_TOKENS = 53
SOURCE_BIAS_VALUES = 54
SOURCE_PROMPT_HISTOGRAM = 55
SOURCE_GENERATED = 56
SOURCE_GRAMMAR_MASK = 57
SOURCE_CONSTANT = 60
SOURCE_CANDIDATE_TOKENS = 70
SOURCE_CANDIDATE_COUNT = 71
SOURCE_CANDIDATE_GENERATION = 72
SOURCE_CANDIDATE_ENDPOINT = 73
SOURCE_CANDIDATE_MASKS = 74

# bindings.indexing
INDEX_SCALAR = 1
INDEX_SUBMISSION_ROW = 2
INDEX_ACTIVE_ROW = 3
INDEX_PHYSICAL_ROW = 4
INDEX_PACKED_TOKEN = 5

# where a draft comes from: index of slots.acceptance
DRAWN = 0  # by the program
COPIED = 1  # from the request's own text, by the scheduler

# what a cohort drafts: index of drafts.survival
KIND_DRAWN = 0  # every lane draws
KIND_COPIED = 1  # lanes with a copy offer it, the others nothing
KIND_BOTH = 2  # lanes with a copy offer it, the others draw

# slots.waits: the barrier for which a slot that could go on waits for a completion
WAIT_HOST_PENDING = 1
WAIT_HOST_STOP = 2
WAIT_HISTORY = 3
WAIT_COST = 4
WAIT_PHASE = 5
WAIT_ENDPOINT = 6

# histogram words: generated count, plus this bit where the prompt holds the token
HISTOGRAM_PROMPT = 1 << 30

# ingress.kind
INGRESS_SUBMIT = 1
INGRESS_CANCEL = 2
INGRESS_DONE = 3  # a cancel that was handled ahead of a submission that waits
INGRESS_ABANDONED = 4  # a submission that was cancelled before it was received

# ingress.flags
FLAG_PENALTIES = 1  # some penalty is on, so the device needs the prompt histogram
FLAG_TIMED = 2  # each token's completion is stamped
FLAG_SCORED = 4  # the prompt's tokens are scored
FLAG_KEEP_STOP = 8  # the stop that ends the output is shown with it

# egress.kind
EGRESS_TOKEN = 1
EGRESS_FINISHED = 2
EGRESS_REJECTED = 3
EGRESS_SCORE = 4

# requests.text_end, egress.text: all text may be shown
TEXT_ALL = 2**31 - 1

# egress.reason of a rejection; `value` and `limit` say by how much
REJECT_CONTEXT = 1  # prompt and output limit exceed the context
REJECT_PAGES = 2  # can never fit the cache
REJECT_VOCABULARY = 3  # a prompt token is outside the input vocabulary
REJECT_EMPTY = 4  # no prompt token
REJECT_BLOCKS = 5  # token arena smaller than the request
REJECT_STOPS = 6  # stop strings, but the engine has no byte table
REJECT_GRAMMAR = 7  # no program takes grammar masks
REJECT_SPAN = 8  # an atomic span is longer than any program's share of a prompt
