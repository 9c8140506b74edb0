"""A compiler's process that never ends by itself; it writes its number where WORKER_SAYS."""

import os
import sys
import time
from pathlib import Path

from grpo_jax.planning import worker


def lower(request):
    """Takes for ever."""
    Path(os.environ["WORKER_SAYS"]).write_text(str(os.getpid()))
    time.sleep(120)


if __name__ == "__main__":
    worker.lower = lower
    worker.main(sys.argv[1])
