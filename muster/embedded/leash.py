"""Becomes another program that the kernel kills when its parent ends: `python -m muster.embedded.leash PID program …`.

For parents that have threads, where nothing of Python may run between fork and exec (linux.child_setup).
"""

import os
import sys

from muster.embedded import linux


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    linux.child_die_with(int(parent))
    os.execv(program, [program, *arguments])  # noqa: S606 (an argument list: no shell is wanted)


if __name__ == "__main__":
    main()
