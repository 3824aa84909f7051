"""Plays one job: it comes on stdin, and messages go to stdout. Started by `muster simulate`, which ends it, too.

It has a process of its own, with a fixed order of sets (PYTHONHASHSEED): so the same job has the same outcome, byte for
byte, and two of them run side by side.
"""

import os
import sys
import time

from services.scheduler.simulation.engine import Simulation
from services.scheduler.simulation.frames import Broken, Far, Outcome, decode_job, write
from services.scheduler.simulation.ledger import RefusedError, RestlessError

TELL_SECONDS = 0.1


def main() -> int:
    out = sys.stdout.buffer
    told = began = time.monotonic()

    def progress(done: float, total: float) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            write(out, Far(done, total))

    try:
        simulation = Simulation(decode_job(sys.stdin.buffer.read()), progress)
        figures = simulation.run()
        write(out, Outcome(figures, time.monotonic() - began, simulation.plans))
    except (RefusedError, RestlessError) as error:
        write(out, Broken(str(error)))
        return 1
    except (BrokenPipeError, KeyboardInterrupt):
        # Whoever wanted to know is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
