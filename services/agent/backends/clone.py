"""How a repository comes into a pod: a script for any shell, which runs before the pod's own program and as the same
user. Pure.

It asks for nothing on a terminal, runs no hooks, and speaks http and https alone: a repository names no file of the
machine and no program. What the server sends more slowly than a person would wait for is given up.
"""

from typing import Final

from events.workload.volumes import ClonedFolder

CLONE_SECONDS: Final = 600
"""For one repository."""
CLONE_BYTES: Final = 10 * 1024**3
"""Of one repository, with its files."""
NOT_CLONED: Final = "git"
"""Reason of a run that failed because a repository could not be cloned."""
NO_PROGRAM: Final = 81
"""Exit code of the script where a program is missing."""
ENVIRONMENT: Final = {
    "GIT_ALLOW_PROTOCOL": "https:http",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
    "GIT_HTTP_LOW_SPEED_TIME": "60",
    "GIT_TERMINAL_PROMPT": "0",
}
SCRIPT: Final = f"""\
repository=$1 branch=$2 revision=$3 folder=$4
for program in git timeout; do
  command -v "$program" >/dev/null 2>&1 || {{ echo "there is no program $program" >&2; exit {NO_PROGRAM}; }}
done
run() {{ timeout {CLONE_SECONDS} git -c safe.directory='*' -c core.hooksPath=/dev/null -C "$folder" "$@"; }}
run init -q
run remote add origin "$repository"
wanted=${{revision:-${{branch:-HEAD}}}}
if run fetch -q --depth 1 --no-tags origin "$wanted" 2>/dev/null; then
  run checkout -q --detach FETCH_HEAD
elif [ -z "$revision" ]; then
  run fetch -q origin "$wanted"
  run checkout -q --detach FETCH_HEAD
else
  run fetch -q --tags origin '+refs/heads/*:refs/remotes/origin/*'
  run checkout -q --detach "$revision"
fi
"""
"""Its arguments: the repository, a branch and a revision (each may be empty), and the folder to fill. A server that
gives no single revision gives all. Kubernetes takes `$(...)` in a command for its own, so there is none.
"""


def clone_command(volume: ClonedFolder) -> tuple[str, ...]:
    return ("sh", "-ec", SCRIPT, "clone", volume.repository, volume.branch, volume.revision, volume.mount_path)
