"""`python -m services.projector`: the projector as a process of its own."""

from services.projector.service import run
from services.runtime.host import main

main("projector", run)
