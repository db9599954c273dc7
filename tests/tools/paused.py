"""``scripts/train.py``, waiting after its first checkpoint for a test to stop it.

So a training is stopped in its middle on any machine, however fast or busy it is.
Processes that torchrun has started again do not wait.
"""

import os
import runpy
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/train.py"
replace = os.replace


def replace_and_wait(source, target):
    """Move a file; if it is a checkpoint, wait for a signal."""
    replace(source, target)
    while "checkpoint" in Path(target).name:
        time.sleep(1)


if __name__ == "__main__":
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.replace = replace_and_wait
    sys.argv[0] = str(SCRIPT)
    sys.path[0] = str(SCRIPT.parent)  # as for a script that Python runs
    runpy.run_path(str(SCRIPT), run_name="__main__")
