"""What a command that waits does while its server is away: it asks again, and says so once.

Used by `--wait`, `-w`, `logs -f` and `events tail` alike. It ends by the command's `--timeout`, or, where none was
given, after an outage of PATIENCE_SECONDS.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from muster.cli.exits import ExitCode, Problem
from muster.cli.values import format_span

if TYPE_CHECKING:
    from muster.cli.client import Api
    from muster.cli.output import Output

PATIENCE_SECONDS: Final = 120.0
"""How long a server may be away where no --timeout says otherwise: a restart takes ten seconds, a reboot a minute."""
FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 4.0


class Patience:
    """Of one command, from its start to its end."""

    def __init__(
        self,
        api: "Api",
        out: "Output",
        *,
        timeout_seconds: float | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._api = api
        self._out = out
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._started = time.monotonic()
        self._away_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def ask[Result](self, act: Callable[[], Result]) -> Result:
        """What `act` answers, once the server answers. Raises Problem where it stays away, or answers a refusal."""
        while True:
            try:
                with self._api.asked_once():
                    answer = act()
            except Problem as problem:
                self.lost(problem)
            else:
                self.back()
                return answer

    def lost(self, problem: Problem) -> None:
        """Waits a moment after a try that found no server. Raises the problem, where it is another or time is up."""
        if problem.code is not ExitCode.UNREACHABLE:
            raise problem
        now = time.monotonic()
        if self._away_since is None:
            self._away_since, self._pause = now, FIRST_PAUSE_SECONDS
            left = self._left()
            if left > 0:
                self._out.talk(f"{problem.what}; asking again for up to {format_span(left)}")
        left = self._left()
        if left <= 0:
            raise Problem(
                problem.what,
                why=(f"it was away for {format_span(now - self._away_since)}", *problem.why),
                todo=problem.todo,
                code=ExitCode.UNREACHABLE,
                request_id=problem.request_id,
            )
        # Between half of the pause and all of it: many clients of one server do not come back together.
        time.sleep(min(self._pause * (0.5 + os.urandom(1)[0] / 510), left))
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def back(self) -> None:
        """The server answers."""
        if self._away_since is not None:
            away = format_span(time.monotonic() - self._away_since)
            self._out.talk(f"Muster at {self._api.url} answers again after {away}")
            self._away_since = None

    @property
    def spent_seconds(self) -> float:
        return time.monotonic() - self._started

    def remaining(self) -> float | None:
        """Seconds to the command's timeout, 0 where it is over; None: as long as it takes."""
        return None if self._timeout_seconds is None else max(self._timeout_seconds - self.spent_seconds, 0.0)

    def sleep(self, seconds: float) -> None:
        """Until the next look, or the timeout."""
        remaining = self.remaining()
        time.sleep(seconds if remaining is None else min(seconds, remaining))

    def check(self, what: str) -> None:
        """Raises Problem (7) where the time is over: `what` was done for all of it."""
        if self.remaining() == 0:
            assert self._timeout_seconds is not None
            raise Problem(f"{what} for {format_span(self._timeout_seconds)}", code=ExitCode.TIMED_OUT)

    def _left(self) -> float:
        """Seconds for which the server may still be away."""
        remaining = self.remaining()
        if remaining is not None:
            return remaining
        assert self._away_since is not None
        return self._patience_seconds - (time.monotonic() - self._away_since)
