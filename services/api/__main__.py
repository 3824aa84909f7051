"""`python -m services.api`: one api as a process of its own."""

from services.api.service import run
from services.runtime.host import main

main("api", run)
