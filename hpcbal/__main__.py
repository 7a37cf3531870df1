"""The program: `hpcbal`, or `python -m hpcbal`."""

from __future__ import annotations

import sys

from hpcbal.errors import INTERRUPTED
from hpcbal.stderr import say


def main() -> int:
    """Run the command line; Ctrl-C while its modules are being imported leaves no traceback either."""
    try:
        from hpcbal.cli import main as run

        return run()
    except KeyboardInterrupt:
        say("hpcbal: interrupted")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
