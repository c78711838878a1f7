"""Files that are mapped and can be read too, whatever lies under their name by then."""

import contextlib
import mmap
import os


class MappedFile(mmap.mmap):
    """A whole file, read-only. descriptor: of the same opened file, as long as this lives."""

    descriptor: int

    def __new__(cls, descriptor: int, nbytes: int) -> "MappedFile":
        """Raises ValueError where the file is shorter."""
        made = super().__new__(cls, descriptor, nbytes, access=mmap.ACCESS_READ)
        made.descriptor = os.dup(descriptor)
        return made

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
