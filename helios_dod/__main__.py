"""python -m helios_dod is the command `helios`."""

import sys

from helios_dod.cli import main

if __name__ == "__main__":
    sys.exit(main())
