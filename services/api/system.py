"""What needs no token: whether the process lives, and serves."""

from services.api.answers import Health
from services.api.context import Call
from services.api.errors import RETRY_AFTER_SECONDS, ApiError
from services.api.operations import Answer, reads
from services.runtime.log.log_state import log_trouble


@reads("/healthz", tag="System", summary="Check whether the process is alive", public=True)
async def alive(_: Call) -> Answer[Health]:
    return Answer(Health(status="alive"))


@reads("/readyz", tag="System", summary="Check whether it can serve requests", public=True, errors=(503,))
async def ready(call: Call) -> Answer[Health]:
    """Whether what is sent here can be carried out: also the log must be one that can be written."""
    away = "not serving yet" if not call.api.ready() else await log_trouble(call.api.requests)
    if not away:
        alarm = call.api.alarm()
        return Answer(Health(status="alarm", alarms={"api": alarm}) if alarm else Health(status="ready"))
    raise ApiError(503, away, headers={"Retry-After": RETRY_AFTER_SECONDS})
