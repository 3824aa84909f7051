"""`python -m services.scheduler`."""

from services.runtime.host import main
from services.scheduler.service import run

main("scheduler", run)
