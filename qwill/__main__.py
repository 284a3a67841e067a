"""`python -m qwill` is the same as `qwill`. Knows nothing but where the command line begins."""

from __future__ import annotations

import sys

from qwill.cli import main

if __name__ == "__main__":
    sys.exit(main())
