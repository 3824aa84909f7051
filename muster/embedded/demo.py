"""Child of `muster up --demo`: some life on the simulated cluster. Submits varied trainings at a gentle rate, for ever.

About one in ten fails. Finished ones are deleted after an hour, so that the demo can stay on.
"""

import random
import sys
import time
from pathlib import Path
from typing import Final

from muster.embedded.api import Api, CallError, Json
from muster.embedded.datadir import DataDir
from muster.embedded.welcome import PROJECT
from services.runtime.identity.local_keys import load_or_create_key, sign_token
from services.runtime.process.settings import Settings

EVERY_SECONDS: Final = 4.0
"""With the run times below, about 150 of the 256 GPUs are busy."""
TOKEN_SECONDS: Final = 3600
KEPT_SECONDS: Final = 3600
FAILING_SHARE: Final = 0.1

WORDS: Final = ("bert", "llama", "resnet", "whisper", "unet", "gemma", "clip", "vit", "mamba", "t5")
KINDS: Final = ("pretrain", "finetune", "distill", "sweep", "evaluate", "ablation")
GPUS: Final = ((0.5, 1), (1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (1, 8))
"""GPUs of a pod, and pods."""


def training(chance: random.Random, number: int, project_id: str, cluster_id: str) -> dict[str, Json]:
    """One made-up training."""
    devices, pods = chance.choice(GPUS)
    compute: dict[str, Json] = {"cpuCoreRequest": 2.0, "cpuMemoryRequest": "8G"}
    if devices < 1:
        compute |= {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": devices}
    else:
        compute |= {"gpuDevicesRequest": int(devices)}
    failed = chance.random() < FAILING_SHARE
    return {
        "name": f"{chance.choice(WORDS)}-{chance.choice(KINDS)}-{number}",
        "projectId": project_id,
        "clusterId": cluster_id,
        "spec": {
            "image": "registry.example.com/research/train:1",
            "command": "python train.py",
            "compute": compute,
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 1,
            "autoDeletionTimeAfterCompletionSeconds": KEPT_SECONDS,
            "annotations": [
                {"name": "simulation.muster.dev/runtime-seconds", "value": str(int(chance.uniform(20, 400)))},
                {"name": "simulation.muster.dev/exit-code", "value": "1" if failed else "0"},
            ],
        },
    }


def find(api: Api, path: str, listed_as: str, name: str) -> str:
    """Id of the thing of that name; empty where the list does not show it yet."""
    listed = api.get(path).get(listed_as)
    if isinstance(listed, list):
        for item in listed:
            if isinstance(item, dict) and item.get("name") == name:
                return str(item.get("id"))
    return ""


def main(port: int, root: Path) -> None:
    """Submit for ever; the supervisor ends us."""
    settings = Settings()
    key = load_or_create_key(DataDir(root=root).key_file)
    chance = random.Random()  # noqa: S311 (nothing here is secret)
    number = int(time.time())
    while True:
        token = sign_token(
            key,
            subject=settings.admin_subject,
            issuer=settings.issuer,
            audience=settings.audience,
            ttl_seconds=TOKEN_SECONDS,
        )
        api = Api(port, token)
        try:
            project_id = find(api, f"/org-unit/projects?name={PROJECT}", "projects", PROJECT)
            cluster_id = find(api, "/clusters", "clusters", "demo")
            if project_id and cluster_id:
                api.post("/workloads/trainings", training(chance, number, project_id, cluster_id))
                number += 1
        except CallError as error:
            print(f"muster demo: {error}", file=sys.stderr, flush=True)
        time.sleep(EVERY_SECONDS * chance.uniform(0.5, 1.5))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
