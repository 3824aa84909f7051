"""A training of one's own: it reads what lies beside it, and says how far it is.

muster training submit mine -i python:3.13 --code examples/own-script -- python3 train.py
muster training logs mine -f
"""

import json
import time
from pathlib import Path

settings = json.loads((Path(__file__).parent / "settings.json").read_text())
error = 1.0
for step in range(1, settings["steps"] + 1):
    error *= settings["rate"]
    print(f"step {step}: error {error:.4f}")
    time.sleep(settings["seconds"])
Path("model.txt").write_text(f"{error}\n")
