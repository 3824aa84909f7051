"""`python -m services.ownership`."""

from services.ownership.service import run
from services.runtime.host import main

main("ownership", run)
