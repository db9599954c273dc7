"""Make every copy of the repository's address point to a fork.

python tools/fork.py https://github.com/you/your-fork
"""

import re
import subprocess
import sys

import pages
import sync

ENDINGS = {".py", ".md", ".yml", ".ipynb", ".txt", ".cff"}


def copies(addresses):
    """The text files of the repository that hold one of the addresses."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=pages.ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    for name in listed.stdout.splitlines():
        path = pages.ROOT / name
        if path.suffix in ENDINGS and path.is_file():
            text = path.read_text(encoding="utf-8")
            if any(address in text for address in addresses):
                yield path, text


def main(arguments):
    if len(arguments) != 1 or not re.fullmatch(
        r"https://[^\s/]+/\S+[^\s/]", arguments[0]
    ):
        sys.exit("say where to: make fork REPOSITORY=https://github.com/you/your-fork")
    old, new = map(
        pages.addresses, (pages.repository(), arguments[0].removesuffix(".git"))
    )
    for path, text in list(copies(old)):
        for there, here in zip(old, new, strict=True):
            text = text.replace(there, here)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"{path.relative_to(pages.ROOT)}: changed")
    sync.main([])


if __name__ == "__main__":
    main(sys.argv[1:])
