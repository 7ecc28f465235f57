"""`python -m fwgen` is the `fwgen` command."""

import sys

from fwgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
