"""The server's own tables, shared by its processes beside the world: lifecycle, permits, workers.

A permit is a row with an owner, so that a dead worker's permits can be told and returned; the row
also names the choice that holds it.
"""

from helios_dod.schema import i32, i64, scalar, table, u8
from helios_dod.system import compare_exchange, fetch_add, kernel, store_release

STATUS_CLASSES = ("2xx", "4xx", "429", "5xx", "dropped")
STATUS_COUNT = len(STATUS_CLASSES)
CAUSE_BYTES = 2000
GAP_SHIFT = 3  # a new observation weighs 1/8
DAY_NS = 86_400 * 1_000_000_000
RETRY_SECONDS_MAX = 60


@table()
class Service:
    """The server's life. The parent writes all but what its comments say."""

    engine_state: scalar(i64)  # written by the engine
    engine_failed_at_start: scalar(i64)  # 1: it never was ready; written by engine and workers
    engine_pid: scalar(i64)
    parent_pid: scalar(i64)
    draining: scalar(i64)  # 1: the server takes no new requests
    engine_restarts: scalar(i64)  # times that a failed engine was started again
    engine_stop: scalar(i64)  # 1: workers are gone, the engine ends
    permit_count: scalar(i64)  # rows of `permits` in use
    worker_count: scalar(i64)  # rows of `workers` in use
    announced: scalar(i64[1])  # 1: some worker has said that the server is ready
    started_ns: scalar(i64)  # of the wall clock
    origin_ns: scalar(i64)  # monotonic: all times that leave the server count from it
    cause_count: scalar(i64)  # bytes of cause; written by the engine
    cause: scalar(u8[CAUSE_BYTES])  # why the engine failed


@table(rows="requests_max")
class Permits:
    """One row a request that may be in the server; owner is the worker's row plus 1, FREE is 0."""

    owner: i32
    tag: i64  # of the choice that holds it
    abort_tag: i64  # of the choice whose request shall end; any worker writes it


@table(rows="frontends_max")
class Workers:
    """One row a frontend worker, written by that worker only."""

    pid: i64
    ready: u8  # it serves requests
    quiet: i64  # engine_restarts for which the worker has let go of the dead engine's memory
    serial: i64  # tags given out by all workers that had this row
    responses: i64[STATUS_COUNT]  # by status class
    streams: i64  # streamed responses begun
    permits_full: i64
    released_ns: i64  # when permits were last returned
    release_gap_ns: i64  # mean time between returned permits
    aborts: i64  # abort requests, by any worker


@kernel
def claim_permits(control, owner, rows):
    """Claims len(rows) permits for a worker (row + 1) and writes which; all of them or none."""
    permits = control[0].permits
    count = 0
    for row in range(control[0].service.permit_count):
        if count == rows.shape[0]:
            break
        if permits.owner[row] == 0 and compare_exchange(permits.owner, row, 0, owner):
            rows[count] = row
            count += 1
    if count == rows.shape[0]:
        return True
    for i in range(count):
        store_release(permits.owner, rows[i], 0)
    return False


@kernel
def release_permits(control, worker, rows, now_ns):
    """Returns permits and notes how fast they come back."""
    workers = control[0].workers
    for i in range(rows.shape[0]):
        assert control[0].permits.owner[rows[i]] != 0
        store_release(control[0].permits.owner, rows[i], 0)
    if rows.shape[0] == 0:
        return
    if workers.released_ns[worker] > 0:
        gap = max(now_ns - workers.released_ns[worker], 1) // rows.shape[0]
        mean = workers.release_gap_ns[worker]
        workers.release_gap_ns[worker] = gap if mean == 0 else mean + ((gap - mean) >> GAP_SHIFT)
    workers.released_ns[worker] = now_ns


@kernel
def seconds_to_permits(control, count, now_ns):
    """Whole seconds in which `count` permits come back at the pace of late, at least 1, at most
    RETRY_SECONDS_MAX. A pace is no faster than the time since the last return allows."""
    workers, returned_a_day = control[0].workers, 0
    for worker in range(control[0].service.worker_count):
        if workers.release_gap_ns[worker] > 0:
            gap = max(workers.release_gap_ns[worker], now_ns - workers.released_ns[worker])
            returned_a_day += DAY_NS // max(gap, 1)
    if returned_a_day == 0:
        return 1
    need = -(-count * (DAY_NS // 1_000_000_000) // returned_a_day)
    return min(max(need, 1), RETRY_SECONDS_MAX)


@kernel
def ask_abort(control, worker, row, tag):
    """Marks the request whose first choice is `tag` in a permit's row; False if it is not there."""
    permits = control[0].permits
    if worker >= control[0].service.worker_count or row >= control[0].service.permit_count:
        return False
    if permits.owner[row] != worker + 1 or permits.tag[row] != tag:
        return False
    permits.abort_tag[row] = tag
    fetch_add(control[0].workers.aborts, worker, 1)
    return True


@kernel
def reclaim_permits(control, owner):
    """Returns every permit of a worker (row + 1) that has died; their number."""
    count = 0
    for row in range(control[0].service.permit_count):
        if control[0].permits.owner[row] == owner:
            store_release(control[0].permits.owner, row, 0)
            count += 1
    return count


@kernel
def announce_once(control):
    """True for one caller only, once every worker is ready."""
    for row in range(control[0].service.worker_count):
        if control[0].workers.ready[row] == 0:
            return False
    return compare_exchange(control[0].service.announced, 0, 0, 1)


@kernel
def permits_used(control):
    """Permits that some worker holds."""
    count = 0
    for row in range(control[0].service.permit_count):
        if control[0].permits.owner[row] != 0:
            count += 1
    return count
