"""Make the lock files anew: exact versions for Linux, macOS and Windows.

One lock serves Python 3.11, 3.12 and 3.13 (markers choose where they differ). Colab's
has its own versions, and JAX's CUDA build is resolved beside the main lock.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "requirements"
LOCKS = [  # from, to, oldest Python
    ("dev.txt", "lock.txt", "3.11"),
    ("cuda.txt", "lock-cuda.txt", "3.11"),
    ("colab.txt", "lock-colab.txt", "3.12"),
]


def main():
    for wanted, lock, python in LOCKS:
        command = [sys.executable, "-m", "uv", "pip", "compile", wanted, "-o", lock]
        command += ["--universal", "--python-version", python, "--upgrade", "--quiet"]
        command += ["--no-annotate", "--custom-compile-command", "make lock"]
        subprocess.run(command, cwd=FOLDER, check=True)
        print(f"requirements/{lock}: written")


if __name__ == "__main__":
    main()
