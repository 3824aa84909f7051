"""Submits a training and finds it in the list, with the client made from the API's document."""

import sys
from uuid import UUID

from generated import AuthenticatedClient
from generated.api.trainings import create_training1
from generated.api.workloads import list_workloads
from generated.models import Training1, TrainingCreation, TrainingSpec, WorkloadList

url, token, name, project_id, cluster_id = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token)
body = TrainingCreation(
    name=name, project_id=project_id, cluster_id=UUID(cluster_id), spec=TrainingSpec(image="python:3.13")
)
sent = create_training1.sync_detailed(client=client, body=body)
training = sent.parsed
assert isinstance(training, Training1), sent
listed = list_workloads.sync(client=client, min_seq=int(sent.headers["X-Log-Sequence"]))
assert isinstance(listed, WorkloadList), listed
names: list[str] = [row.name for row in listed.workloads if str(row.id) == str(training.workload_id)]
print(",".join(names))
