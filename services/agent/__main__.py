"""`python -m services.agent`."""

from services.agent.service import run
from services.runtime.host import main

main("agent", run)
