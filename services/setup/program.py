"""The program: settings from the environment, one of two things to do, an exit code."""

from collections.abc import Sequence

import structlog
import uvloop

from services.runtime.nats.streams import StreamError
from services.runtime.process.host import configure_logging
from services.runtime.process.settings import Settings
from services.setup.migrate import migrate
from services.setup.service import SetupError, set_up

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where something could not be made; run it again then."""
    settings = Settings()
    configure_logging(settings.log_level)
    try:
        uvloop.run(migrate(settings) if list(arguments) == ["migrate"] else set_up(settings))
    except (SetupError, StreamError) as error:
        log.error("setup_failed", reason=str(error))  # noqa: TRY400 (the sentence says all)
        return 1
    except Exception:
        log.exception("setup_failed")
        return 1
    return 0
