"""The program: settings from the environment, one of three things to do, an exit code."""

import sys
from collections.abc import Sequence

import structlog
import uvloop

from services.runtime.nats.streams import StreamError
from services.runtime.process.host import configure_logging
from services.runtime.process.settings import Settings
from services.setup.feed import rebuild_feed
from services.setup.migrate import migrate
from services.setup.service import SetupError, set_up

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where something could not be made; run it again then. 2 where it is not known what to do."""
    if list(arguments) not in ([], ["migrate"], ["rebuild-feed"]):
        sys.stderr.write(f"services.setup: {' '.join(arguments)!r} is unknown; give nothing, migrate or rebuild-feed\n")
        return 2
    settings = Settings()
    configure_logging(settings.log_level)
    try:
        match list(arguments):
            case ["migrate"]:
                uvloop.run(migrate(settings))
            case ["rebuild-feed"]:
                log.warning("feed_deleted", done=uvloop.run(rebuild_feed(settings)))
            case _:
                uvloop.run(set_up(settings))
    except (SetupError, StreamError) as error:
        log.error("setup_failed", reason=str(error))  # noqa: TRY400 (the sentence says all)
        return 1
    except Exception:
        log.exception("setup_failed")
        return 1
    return 0
