"""match: longest cached prefix for each waiting request. Nothing is published yet, so it finds
nothing."""

from helios_dod.system import system


@system(reads="requests.waiting_first", writes="requests.cached_count")
def match(world):
    """The head of the waiting list is the only one that `admit` can take next."""
    requests = world[0].requests
    if requests.waiting_count > 0:
        requests.cached_count[requests.waiting_first] = 0
