"""Code for clusters of Kubernetes, which take less: with limits of its own, so with a service of its own."""

from pathlib import Path

from development.servers import NatsServer, PostgresServer
from services.runtime.code.limits import KUBERNETES_MAX_BYTES, PART_BYTES
from tests.api.test_code import V1, archive, send
from tests.support.api import serving


def test_a_kubernetes_cluster_takes_less_and_says_how_much(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """It lies in the store of that cluster."""
    with (
        serving(nats_server, postgres_server, tmp_path, code_max_bytes=2 * KUBERNETES_MAX_BYTES) as served,
        served.client() as admin,
    ):
        cluster = admin.post(f"{V1}/clusters", json={"name": "gpu-1", "kind": "kubernetes"}).json()["id"]
        place = {"projectId": served.project, "clusterId": cluster}
        limits = admin.get(f"{V1}/code", params=place).json()
        most = KUBERNETES_MAX_BYTES // PART_BYTES
        assert limits["maxBytes"] == KUBERNETES_MAX_BYTES
        assert admin.get(f"{V1}/code", params=place | {"clusterId": served.cluster}).json()["maxBytes"] > most
        (refused,) = send(served, admin, archive(most + 1), 0, clusterId=cluster)
        assert refused.status_code == 400
        (issue,) = refused.json()["complianceIssues"]
        assert issue["field"] == "parts"
        assert f"at most {KUBERNETES_MAX_BYTES} bytes are taken by clusters of kind kubernetes" in issue["details"]
        given = archive(2)
        assert [answer.status_code for answer in send(served, admin, given, clusterId=cluster)] == [202, 202]
        body = served.training(spec={"code": given.digest}, clusterId=cluster)
        made = admin.post(f"{V1}/workloads/trainings", json=body)
        assert (made.status_code, made.json()["spec"]["code"]) == (202, given.digest)
