"""``python -m resperf``: the command line."""

import sys

from resperf.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
