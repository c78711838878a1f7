"""Files that are mapped and can be read too, whatever lies under their name by then."""

import mmap
import os


class MappedFile(mmap.mmap):
    """A whole file, read-only."""

    file: tuple[int, int]

    def __new__(cls, descriptor: int, nbytes: int) -> "MappedFile":
        """Raises ValueError where the file is shorter."""
        made = super().__new__(cls, descriptor, nbytes, access=mmap.ACCESS_READ)
        made.file = _file(descriptor)
        return made

    def reopened(self) -> int:
        """A new descriptor of the same file. The mapping keeps one, which Python does not tell: it
        is found by the file that it is of. A second one each would be too many for a process."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if _file(int(name)) == self.file:
                    return os.open(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # closed by now, as the folder's own is
        raise OSError("the mapping's file is not open")


def _file(descriptor: int) -> tuple[int, int]:
    """What tells a file from every other."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
