"""One-shot child of `muster up`, before everything else: whether the settings in its environment can be taken.

Says each that cannot, by its name, and ends with REFUSED then. Those that `muster up` sets itself are named, and no
more. Of variables that are not taken no value is shown: it may be a secret. A process of its own, because what it
imports would stay in the supervisor's memory.
"""

import os
import sys
from collections.abc import MutableMapping
from difflib import get_close_matches
from typing import Final

from pydantic import ValidationError

from muster.embedded.environment import PREFIX, SET_BY_UP, given_settings, is_taken
from muster.embedded.processes import say
from services.runtime.process.settings import Settings

REFUSED: Final = 2
MOST_SHOWN: Final = 60
"""Characters of a value."""


def main(environ: MutableMapping[str, str]) -> int:
    """The exit code. Only what is taken stays in `environ`, which is this process' own."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    refusals: list[str] = []
    for name in given_settings(environ):
        if name in SET_BY_UP:
            say(f"  {name} is not taken: it is set by `muster up` itself{_instead(SET_BY_UP[name])}")
        elif name not in known:
            near = get_close_matches(name.upper(), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            refusals.append(f"{name} is no setting, and nothing reads it{hint}")
        if name not in known or not is_taken(name):
            del environ[name]
    try:
        Settings()
    except ValidationError as error:
        refusals += [
            f"{PREFIX}{str(each['loc'][0]).upper()}: {each['msg']}; given: {str(each['input'])[:MOST_SHOWN]!r}"
            for each in error.errors()
        ]
    for refusal in refusals:
        say(refusal)
    if refusals:
        say("nothing was started: change or unset what is named (docs/reference/settings.md)")
    return REFUSED if refusals else 0


def _instead(option: str) -> str:
    return f"; give {option}" if option else ""


if __name__ == "__main__":
    sys.exit(main(os.environ))
