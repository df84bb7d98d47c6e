"""`python -m proxima` is the command `proxima`."""

import sys

from proxima.cli import main

if __name__ == "__main__":
    sys.exit(main())
