"""Programs in flight on the simulated device, and when each ends."""

from helios_dod.executors.costs import program_ns
from helios_dod.limits import FRAMES_MAX
from helios_dod.system import kernel

# Words of a flight: when the device is free, newest finished sequence, programs in flight; then
# (end, sequence, frame, program) of each, oldest first.
FREE_NS, FINISHED, COUNT, FIRST = range(4)
ENTRY = 4
FLIGHT_WORDS = FIRST + ENTRY * FRAMES_MAX


@kernel
def take_off(world, flight, now_ns, host_ns, frame, program, sequence, operation, costs, features):
    """Queues a submitted frame behind those in flight; its end."""
    assert flight[COUNT] < FRAMES_MAX
    start = max(flight[FREE_NS], now_ns + host_ns)
    flight[FREE_NS] = start + program_ns(world, frame, operation, costs, features)
    entry = FIRST + ENTRY * flight[COUNT]
    flight[entry], flight[entry + 1] = flight[FREE_NS], sequence
    flight[entry + 2], flight[entry + 3] = frame, program
    flight[COUNT] += 1
    return flight[FREE_NS]


@kernel
def land(flight):
    """Takes the oldest program out of flight; its results are there."""
    flight[FINISHED] = flight[FIRST + 1]
    flight[COUNT] -= 1
    for i in range(FIRST, FIRST + ENTRY * flight[COUNT]):
        flight[i] = flight[i + ENTRY]
