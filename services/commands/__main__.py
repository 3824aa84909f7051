"""`python -m services.commands`."""

from services.commands.service import run
from services.runtime.host import main

main("commands", run)
