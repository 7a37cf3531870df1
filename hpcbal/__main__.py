"""`python -m hpcbal`."""

from __future__ import annotations

import sys

from hpcbal.cli import main

if __name__ == "__main__":
    sys.exit(main())
