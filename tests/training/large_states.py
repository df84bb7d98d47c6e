"""The command as it is with envs of large states: ranks keep them until a checkpoint is written."""

import sys

from proxima.__main__ import main
from proxima.training import saving

if __name__ == "__main__":
    saving._GATHERED_BYTES = 0
    sys.exit(main())
