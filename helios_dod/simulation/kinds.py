"""Which histories a simulated core has beside its paged one."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Kinds:
    """A core's histories and what it captures for their snapshots; none by default."""

    recurrent: bool = False
    continuation: bool = False  # keeps pages that are not complete
    latent: int = 0  # tokens of one record of a compressed latent plane, 0: no such plane
    window: int = 0  # tokens of a windowed history in page group 1, 0: there is none
    spare: int = 0  # its pages beside those of slots, 0: as many as are chosen for a core
    shift: int = 0  # pages by which another view of the page table is shifted, 0: there is none
    state_rows: int = 1  # of one request
    snapshots: int = 0
    inline: bool = True  # programs that prefill write snapshots
    closing: bool = True  # the restoring program writes them, too

    @property
    def continued(self) -> bool:
        """Is there continuation storage? It has latent records that are not finished, and the pages
        of a shifted view behind those that a snapshot holds."""
        return self.continuation or self.latent > 0 or (
            self.shift > 0 and (self.recurrent or self.window > 0))

    @property
    def stateful(self) -> bool:
        """Does a text go on from a snapshot only?"""
        return self.recurrent or self.continued or self.window > 0

    @property
    def others(self) -> bool:
        """Is there any history beside the paged one?"""
        return self.stateful or self.shift > 0


PLAIN = Kinds()


def swarm_kinds(rng: random.Random) -> Kinds:
    """Plain, or some of all kinds."""
    if rng.random() < 0.4:
        return PLAIN
    pick = rng.choice
    return Kinds(
        recurrent=pick((False, True)), continuation=pick((False, True)), latent=pick((0, 2, 8)),
        window=pick((0, 0, 5, 30)), shift=pick((0, 0, 1, 2)),
        state_rows=pick((1, 1, 3)), snapshots=pick((0, 1, 4, 8)), inline=rng.random() < 0.8,
        closing=rng.random() < 0.8, spare=pick((0, 1, 1)))
