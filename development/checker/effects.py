"""What pods did where they ran, in their own words, held against the log.

A run writes a line when it begins and one when it is about to end well. The log says that a run is running once its
process is there: one that is killed in its first moments has written nothing, one that ended of itself has.

While it runs it holds a lock on a file of its pod: where another run of the same pod holds it, it says so. The kernel
lets go of the lock when a process dies, however it dies, so nobody's clock is asked.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from development.checker.log import LogChecker
from development.checker.workloads import Workload

PROGRAM = """
import fcntl, json, os, sys, time
folder, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
at = os.environ
pod = {"workload": at["MUSTER_WORKLOAD_ID"], "set": at["MUSTER_POD_SET"], "index": int(at["MUSTER_POD_INDEX"])}
run = pod | {"attempt": int(at["MUSTER_ATTEMPT"]), "try": int(at["MUSTER_RUN"]) - 1}
run["token"] = int(at["MUSTER_RUN_ID"].rsplit("/", 1)[1])
lines = os.open(folder + "/effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
def say(what):
    os.write(lines, (json.dumps(run | {"what": what, "at": time.time()}) + chr(10)).encode())
lock = open(folder + "/lock-{workload}-{set}-{index}".format(**pod), "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("beside another")
say("begin")
time.sleep(seconds)
if not code:
    say("end")
sys.exit(code)
"""
"""What a pod runs: `python FILE folder seconds exit-code`."""


@dataclass(frozen=True)
class Line:
    workload_id: str
    run: str
    token: int
    what: str
    """`begin`, `end`, or `beside another`."""


def read_lines(file: Path) -> list[Line]:
    lines: list[Line] = []
    for text in file.read_text().splitlines() if file.exists() else ():
        told = json.loads(text)
        run = f"{told['workload']}/{told['set']}-{told['index']}/{told['attempt']}.{told['try']}"
        lines.append(Line(told["workload"], run, told["token"], told["what"]))
    return lines


def check_effects(lines: list[Line], log: LogChecker, workload_ids: set[str]) -> list[str]:
    """`workload_ids`: those whose pods write such lines."""
    return [*_lines(lines, log), *_ends(lines, log, workload_ids)]


def _lines(lines: list[Line], log: LogChecker) -> Iterator[str]:
    begun: Counter[str] = Counter()
    for line in lines:
        workload = log.workloads.get(line.workload_id)
        token = workload.tokens.get(line.run) if workload else None
        if token is None:
            yield f"effect: {line.run} ran, and the log never bound it"
        elif token != line.token:
            yield f"effect: {line.run} ran with token {line.token}, and was bound with {token}"
        if line.what == "beside another":
            yield f"effect: {line.run} ran while another run of its pod did"
        elif line.what == "begin":
            begun[line.run] += 1
            if begun[line.run] > 1:
                yield f"effect: {line.run} was begun {begun[line.run]} times"


def _ends(lines: list[Line], log: LogChecker, workload_ids: set[str]) -> Iterator[str]:
    begun = {line.run for line in lines if line.what == "begin"}
    ended = {line.run for line in lines if line.what == "end"}
    for id_ in sorted(workload_ids & log.workloads.keys()):
        workload: Workload = log.workloads[id_]
        for run, how in workload.ends.items():
            if how == "PodSucceeded" and run not in ended:
                yield f"effect: {run} succeeded, says the log, and it never came to its end"
        for run, code in workload.exits.items():
            if run not in begun:
                yield f"effect: {run} ended with {code}, says the log, and it never began"
