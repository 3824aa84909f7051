"""A supervisor over small children, for the tests: `python small_supervisor.py LOGS NAME=CODE…`.

Prints the children's process ids once all are ready, and again whenever one was started anew; ends at SIGTERM.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

from muster.embedded import linux
from muster.embedded.processes import Child, Family, Spec, StartError, kill_leftovers, say

GRACE_SECONDS = 0.5


async def main(logs: Path, codes: dict[str, str]) -> int:
    family = Family(logs)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def ready_file(name: str) -> Path:
        return logs / f"{name}.ready"

    def spec(name: str, code: str) -> Spec:
        async def ready(pid: int) -> bool:
            return ready_file(name).exists() and ready_file(name).read_text() == str(pid)

        prelude = f"import os, pathlib\npathlib.Path({str(ready_file(name))!r}).write_text(str(os.getpid()))\n"
        return Spec(
            name=name, argv=[sys.executable, "-c", prelude + code if "sys.exit" not in code else code], ready=ready
        )

    children = [Child(spec(name, code), family, say) for name, code in codes.items()]
    async with family.collecting_orphans():
        try:
            for child in children:
                child.start()
            for child in children:
                await child.wait_ready(stop)
            shown: list[int | None] = []
            while not stop.is_set():
                pids = [child.pid for child in children]
                if pids != shown and None not in pids:
                    shown = pids
                    print(json.dumps(dict(zip(codes, pids, strict=True))), flush=True)
                await asyncio.sleep(0.02)
        except StartError as error:
            print(f"error: {error}", flush=True)
        await asyncio.gather(*(child.stop(GRACE_SECONDS) for child in children))
    print(f"left: {len(kill_leftovers())}", flush=True)
    return 0


if __name__ == "__main__":
    linux.become_subreaper()
    sys.exit(asyncio.run(main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))))
