"""Manifests that stand as goldens in YAML, each by the name of its file.

`python -m tests.agent.kubernetes.cases` writes them again; read the difference before it is committed.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from events.cluster_protocol import EnvironmentSource, Login, Registry, RepositoryKey, RunPod, SealedValues
from events.workload import rendezvous
from events.workload.fields.distribution import DistributedFramework
from events.workload.fields.scheduling import MatchExpression, NodeSelectorTerm, PodAffinity, Toleration
from events.workload.mpi import Mpi, ssh_files, suggested
from events.workload.needs import ExtendedAmount
from events.workload.pod import DeviceShare, PodRef
from events.workload.pod_sets import Container, ContainerPort, StopBy
from events.workload.readiness import Readiness
from events.workload.rendezvous import Peers
from events.workload.volumes import (
    BucketFolder,
    ClaimedFolder,
    ClonedFolder,
    ConfigFiles,
    EmptyFolder,
    FolderLogin,
    NewClaim,
    NfsFolder,
    NodeFolder,
    Volume,
)
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act import manifests, shared_manifests
from services.agent.backends.kubernetes.act.code_manifests import code_map_manifest
from services.agent.backends.kubernetes.act.manifests import Manifest, pod_manifest
from services.agent.backends.kubernetes.act.objects import Pod, PodMeta
from services.agent.backends.kubernetes.act.port_manifests import port_service_manifest, types_of
from services.agent.backends.kubernetes.act.secret_manifests import NOTHING, needs_of, secret_manifest
from services.agent.backends.kubernetes.act.volume_manifests import claim_manifest
from tests.agent.kubernetes import kinds

GOLDENS = Path(__file__).parent / "goldens"
CLUSTER = "3f0c6f9a-58b1-8c0e-9d41-6d7573746572"
NAMESPACE = "muster-golden"
RELAXED = "muster-golden-relaxed"
STRICT = "muster-golden-strict"
SYSTEM = "muster-golden-system"
GIB = 1024**3


def run(**more: Any) -> RunPod:
    fields: dict[str, Any] = {
        "pod_key": "abcdefghijkl-main-0",
        "token": 41,
        "workload_id": "00443214-c74a-8d5a-a1b2-0123456789ab",
        "workload_name": "train",
        "project_id": "5a1e7c3b-0f2d-8b4c-8d6e-abcdefabcdef",
        "project_name": "golden",
        "pod": PodRef(pod_set="main", index=0, attempt=1, try_=0),
        "node_name": "node-1",
        "image": "registry.example/trainer:1.4",
        "grace_seconds": 30,
    }
    return RunPod(**(fields | more))


PORTS = (
    ContainerPort(container=80, service="LoadBalancer", external=8080),
    ContainerPort(container=6006, service="ClusterIP"),
    ContainerPort(container=8080, service="ClusterIP", external=81),
    ContainerPort(container=8888, service="NodePort", external=30_088),
    ContainerPort(container=8889),
)


def pod(made: RunPod, *, namespace: str = NAMESPACE, **more: Any) -> Manifest:
    return pod_manifest(made, cluster_id=CLUSTER, namespace=namespace, **more)


def whole(count: int) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(device=device, milli=1000) for device in range(count))


def rank(index: int) -> RunPod:
    return run(
        workload_name="Two Ranks!",
        pod_key=f"bcdefghijklm-worker-{index}",
        pod=PodRef(pod_set="worker", index=index, attempt=3, try_=2),
        pods=2,
        devices=whole(1),
    )


def peer(framework: DistributedFramework, **more: Any) -> Manifest:
    """The second worker of a master and two workers."""
    peers = Peers(framework=framework, sets=(("master", 1), ("worker", 2)), first_rank=1, **more)
    made = run(
        workload_name="bert",
        pod_key="cdefghijklmn-worker-1",
        pod=PodRef(pod_set="worker", index=1, attempt=1, try_=0),
        pods=3,
        rendezvous=rendezvous.variables(peers, 1),
        devices=whole(1),
    )
    return pod(made, service=names.service_name(made))


PAIR = ("a private key\n", "ssh-ed25519 AAAA\n")
"""As OpenSSH writes them, but for their content."""


def of_mpi(name: str, *, ssh: str = "", **more: Any) -> Manifest:
    """The launcher, or the first worker, of a launcher and two workers. `ssh`: the folder with their keys."""
    mpi = Mpi(role="launcher" if name == "master" else "worker", workers=2, slots=4, ssh=ssh, serves=bool(ssh))
    needs = needs_of(SealedValues(ssh=ssh_files(mpi, *PAIR)), SECRET) if ssh else NOTHING
    made = run(
        workload_name="bert",
        pod_key=f"defghijklmno-{name}-0",
        pod=PodRef(pod_set=name, index=0, attempt=1, try_=0),
        pods=3,
        mpi=mpi,
        environment=suggested(mpi),
        **more,
    )
    return pod(made, service=names.service_name(made), needs=needs)


def full() -> RunPod:
    return run(
        arguments=("python", "train.py", "--epochs", "3", "$(MUSTER_POD_INDEX)"),
        working_dir="/work",
        environment={"LEVEL": "1", "EMPTY": "", "URL": "https://$(USER_NAME)@example", "MUSTER_ATTEMPT": "9"},
        environment_from=(
            EnvironmentSource(name="USER_NAME", kind="secret", object_name="registry", key="user"),
            EnvironmentSource(name="MODE", kind="config_map", object_name="options", key="mode"),
            EnvironmentSource(name="POD_IP", kind="field", key="status.podIP"),
            EnvironmentSource(name="NVIDIA_VISIBLE_DEVICES", kind="config_map", object_name="options", key="devices"),
        ),
        cpu_milli=2500,
        memory_bytes=4 * GIB,
        cpu_limit_milli=4000,
        memory_limit_bytes=4 * GIB + 1,
        grace_seconds=0,
        labels={
            "team": "vision",
            "app.kubernetes.io/name": "trainer",
            "app.kubernetes.io/managed-by": "somebody",
            "muster.dev/token": "7",
            "kubernetes.io/os": "windows",
            "note": "not a label value!",
            "Upper.Example/x": "y",
        },
        annotations={
            "example.com/ticket": "any text, ünïcode too",
            "muster.dev/visible-devices": "all",
            "kubernetes.io/config.mirror": "x",
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        },
    )


def replica() -> RunPod:
    """Of an inference."""
    return run(
        workload_name="chat",
        pod_key="cdefghijklmn-replica-57",
        pod=PodRef(pod_set="replica", index=57, attempt=1, try_=0),
        endless=True,
        environment={"PORT": "8000", "MODEL_ID": "org/model"},
        ports=(ContainerPort(container=8000, variable="PORT"),),
        readiness=Readiness(port=8000, path="/health"),
        devices=whole(1),
    )


def half(**more: Any) -> Manifest:
    made = run(devices=(DeviceShare(device=2, milli=500),), cpu_milli=500, memory_bytes=GIB)
    return pod(
        made,
        devices=("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",),
        reservations=("gpu-node-1-2-abcdefghijkl",),
        device_memory_bytes=80 * GIB,
        **more,
    )


def by_memory() -> Manifest:
    shares = (DeviceShare(device=0, milli=250), DeviceShare(device=1, milli=250))
    return pod(
        run(devices=shares, gpu_memory_bytes=20 * GIB, gpu_memory_limit_bytes=30 * GIB),
        devices=("GPU-a", "GPU-b"),
        reservations=("gpu-a", "gpu-b"),
    )


def coded(**more: Any) -> RunPod:
    return run(**({"arguments": ("python3", "train.py"), "code": "0123456789abcdef" * 4} | more))


def contained(**more: Any) -> RunPod:
    """With all that may be said of its container. What `restricted` does not allow is another's to refuse."""
    strict = more.get("pod_security") == "restricted"
    return run(
        container=Container(
            pull_policy="Always",
            pull_secrets=("registry", "mirror"),
            stdin=True,
            tty=True,
            home=True,
            large_shm=True,
            user=1000,
            group=2000,
            groups=(3000, 4000),
            non_root=True,
            escalation=None if strict else True,
            capabilities=("NET_BIND_SERVICE",) if strict else ("CHOWN", "SYS_CHROOT"),
            read_only=True,
        ),
        **more,
    )


def placed() -> RunPod:
    """A run with everything that a pod says of its node."""
    expressions = (
        MatchExpression(key="disk", operator="In", values=("ssd", "nvme")),
        MatchExpression(key="rank", operator="Gt", values=("3",)),
        MatchExpression(key="old", operator="DoesNotExist"),
    )
    return run(
        node_type="a100",
        node_terms=(NodeSelectorTerm(match_expressions=expressions), NodeSelectorTerm()),
        tolerations=(
            Toleration(key="dedicated", operator="Equal", value="ml", effect="NoSchedule"),
            Toleration(key="free", operator="Equal", value="", effect="Any"),
            Toleration(name="soon", key="maintenance", operator="Exists", effect="NoExecute", seconds=600),
        ),
        pod_affinity=PodAffinity(type="Required", key="topology.kubernetes.io/zone"),
        extended=(ExtendedAmount(resource="rdma/hca", amount=2),),
        devices=whole(1),
    )


VOLUMES: tuple[Volume, ...] = (
    ConfigFiles(mount_path="/etc/settings", object_name="settings"),
    ConfigFiles(mount_path="/etc/one.yaml", object_name="settings", only_key="one.yaml", mode=0o400),
    ConfigFiles(mount_path="/etc/certificates", object_name="certificates", secret=True, mode=0o400),
    EmptyFolder(mount_path="/scratch"),
    EmptyFolder(mount_path="/fast", in_memory=True, most_bytes=2 * GIB),
    NfsFolder(mount_path="/sets", server="nfs.example.com", path="/export/sets"),
    NfsFolder(mount_path="/results", server="nfs.example.com", path="/export/results", read_only=False),
)
NEW = NewClaim(
    size_bytes=10 * GIB,
    storage_class="fast",
    modes=("ReadWriteOnce", "ReadOnlyMany"),
    ephemeral=True,
    attributes={"tier": "gold"},
)
BLOCK = NewClaim(size_bytes=GIB, modes=("ReadWriteOnce",), block=True)
SAVED = NewClaim(size_bytes=50 * GIB, storage_class="fast", modes=("ReadWriteMany",))
SAVES = ClaimedFolder(mount_path="/muster/checkpoint", number=1, new=SAVED, checkpoint=True)
CLAIMS: tuple[Volume, ...] = (
    ClaimedFolder(mount_path="/data", number=0, new=NEW),
    ClaimedFolder(mount_path="/sets", number=1, claim="sets", read_only=True),
    ClaimedFolder(mount_path="/device", number=2, claim="device", new=BLOCK),
)
CLONED: tuple[Volume, ...] = (
    ClonedFolder(mount_path="/src", repository="https://git.example.com/team/code", branch="main"),
    ClonedFolder(mount_path="/lib", repository="https://git.example.com/team/lib", revision="v1.2"),
)
BUCKETS: tuple[Volume, ...] = (
    BucketFolder(mount_path="/open", bucket="open-sets"),
    BucketFolder(
        mount_path="/sets",
        bucket="training-sets",
        url="https://store.example.com:9000/s3",
        login=FolderLogin(name="of-the-team", user_key="AccessKeyId", password_key="SecretKey"),
    ),
    BucketFolder(
        mount_path="/mine",
        bucket="my-sets",
        login=FolderLogin(
            name="mine",
            credential=True,
            user_key="accessKeyId",
            password_key="accessKeySecret",
        ),
    ),
)
PRIVATE: tuple[Volume, ...] = (
    ClonedFolder(
        mount_path="/src",
        repository="https://git.example.com:8443/team/code",
        login=FolderLogin(name="mine", credential=True),
    ),
    ClonedFolder(
        mount_path="/lib",
        # Nothing that a person writes stands for a value.
        repository="https://git.example.com/team/lib?$(MUSTER_GIT_PASSWORD)",
        login=FolderLogin(name="of-the-team"),
    ),
    ClonedFolder(
        mount_path="/old",
        repository="https://git.example.com/team/old",
        login=FolderLogin(name="of-the-team", user_key="who", password_key="token"),
    ),
)
BY_SSH: tuple[Volume, ...] = (
    ClonedFolder(
        mount_path="/src",
        repository="ssh://git@git.example.com:2222/team/code",
        login=FolderLogin(name="mine", credential=True),
    ),
    ClonedFolder(mount_path="/lib", repository="git@git.example.com:team/lib", login=FolderLogin(name="of-the-team")),
    ClonedFolder(
        mount_path="/old",
        repository="git@git.example.com:team/old",
        login=FolderLogin(name="of-the-team", password_key="id_ed25519"),
    ),
)
KEYS = SealedValues(keys={"/src": RepositoryKey(private="a private key\n", known_hosts="host ssh-ed25519 AAAA\n")})
VALUES = SealedValues(
    environment={"WANDB_API_KEY": "a value", "a name that is no key": "another value"},
    registries=(Registry(url="https://registry.example", user="ann", password="a password", email="ann@example.com"),),
    logins={"/src": Login(user="ann", password="a token")},
)
SECRET = names.secret_name(CLUSTER, "abcdefghijkl-main-0", 41)


def secret(values: SealedValues) -> Manifest:
    metadata = PodMeta(
        name="train-abcdefghijkl-main-0", namespace=NAMESPACE, uid="0f7c3f1e-6d53-4f0b-9a55-1d2c3b4a5f60"
    )
    return secret_manifest(Pod(metadata=metadata), values, SECRET, manifests.managed_labels(CLUSTER))


OF_NODES: tuple[Volume, ...] = (
    NodeFolder(mount_path="/models", path="/var/models"),
    NodeFolder(mount_path="/mnt", path="/mnt", read_only=False, propagation="HostToContainer"),
)
HOST = Container(host_network=True, host_ipc=True, seccomp="Unconfined", capabilities=("SYS_ADMIN",))


MPIRUN = ("mpirun", "python", "train.py")


SHARED_NAME = names.shared_name(CLUSTER, "7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10", NAMESPACE, "uid")
SHARED_LABELS = {
    names.MANAGED_BY: names.MANAGER,
    names.CLUSTER: CLUSTER,
    names.DATA_VOLUME: "7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10",
}
KEY_OF_DRIVER = {"namespace": "storage", "name": "key"}
OF_DRIVER: Manifest = {
    "capacity": {"storage": "5Gi"},
    "accessModes": ["ReadWriteMany"],
    "persistentVolumeReclaimPolicy": "Delete",
    "storageClassName": "sets",
    "volumeMode": "Filesystem",
    "claimRef": {"namespace": "muster-vision", "name": "imagenet", "uid": "u"},
    "csi": {
        "driver": "sets.csi.example.com",
        "volumeHandle": "v-1",
        "volumeAttributes": {"share": "a"},
        "nodeStageSecretRef": KEY_OF_DRIVER,
        "nodeExpandSecretRef": KEY_OF_DRIVER,
    },
    "nodeAffinity": {
        "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    },
}
"""Of a volume that is shared, as its driver made it; the next one is of a server."""
OF_NFS: Manifest = {
    "capacity": {"storage": "1Ti"},
    "accessModes": ["ReadWriteMany"],
    "persistentVolumeReclaimPolicy": "Retain",
    "mountOptions": ["nfsvers=4.1"],
    "nfs": {"server": "nfs.example.com", "path": "/exports/sets"},
}

CASES: dict[str, Callable[[], Manifest]] = {
    "pod": lambda: pod(run()),
    "pod-full": lambda: pod(full()),
    "pod-whole-gpus": lambda: pod(run(devices=whole(8), cpu_milli=96_000, memory_bytes=900 * GIB)),
    "pod-half-gpu": half,
    "pod-gpu-memory": by_memory,
    "pod-placed": lambda: pod(placed()),
    "pod-placed-preferred": lambda: pod(
        run(
            node_type="a100",
            pod_affinity=PodAffinity(type="Preferred", key="rack"),
            extended=(ExtendedAmount(resource="rdma/hca", amount=1),),
            code="0123456789abcdef" * 4,
        ),
        code_maps=1,
    ),
    "pod-limit-without-request": lambda: pod(run(cpu_limit_milli=1500, memory_limit_bytes=GIB)),
    "pod-rank-1": lambda: pod(rank(1), service="two-ranks-bcdefghijklm"),
    "pod-pytorch": lambda: peer("PyTorch"),
    "pod-pytorch-elastic": lambda: peer("PyTorch", elastic=(3, 5), processes=8),
    "pod-tensorflow": lambda: peer("TensorFlow"),
    "pod-xgboost": lambda: peer("XGBoost"),
    "pod-jax": lambda: peer("JAX"),
    "pod-mpi-launcher": lambda: of_mpi("master", arguments=MPIRUN),
    "pod-mpi-worker": lambda: of_mpi("worker", devices=whole(4)),
    "pod-mpi-launcher-ssh": lambda: of_mpi("master", arguments=MPIRUN, ssh="/root/.ssh"),
    "pod-mpi-worker-ssh": lambda: of_mpi("worker", ssh="/root/.ssh"),
    "pod-mpi-worker-ssh-user": lambda: of_mpi("worker", ssh="/home/me/.ssh", container=Container(user=1000)),
    "secret-ssh": lambda: secret(
        SealedValues(ssh=ssh_files(Mpi(role="worker", workers=2, slots=4, ssh="/root/.ssh", serves=True), *PAIR))
    ),
    "pod-replica": lambda: pod(replica()),
    "pod-restricted": lambda: pod(run(pod_security="restricted"), namespace=STRICT, security="restricted"),
    "pod-restricted-by-project": lambda: pod(run(pod_security="restricted")),
    "pod-container": lambda: pod(contained()),
    "pod-container-restricted": lambda: pod(
        contained(pod_security="restricted"), namespace=STRICT, security="restricted"
    ),
    "pod-container-code": lambda: pod(
        coded(container=Container(user=1000, group=1000, home=True, pull_policy="Never")), code_maps=1
    ),
    "pod-volumes": lambda: pod(run(volumes=VOLUMES)),
    "pod-probed": lambda: pod(
        run(readiness=Readiness(port=8443, path="/healthz", https=True, delay_seconds=5, period_seconds=2, failures=1))
    ),
    "pod-cloned": lambda: pod(
        coded(volumes=CLONED, cpu_milli=500, container=Container(user=1000, pull_policy="Never")), code_maps=1
    ),
    "pod-buckets": lambda: pod(
        run(volumes=BUCKETS, container=Container(user=1000)),
        needs=needs_of(SealedValues(logins={"/mine": Login(user="AKIDEXAMPLE", password="a secret")}), SECRET),
        own_image="registry.example.com/muster:1.0",
    ),
    "pod-buckets-restricted": lambda: pod(
        run(volumes=BUCKETS[:1], pod_security="restricted"), namespace=STRICT, security="restricted"
    ),
    "pod-credentials": lambda: pod(
        run(
            volumes=PRIVATE,
            environment={"LEVEL": "1", "KEY": "$(WANDB_API_KEY)"},
            container=Container(pull_secrets=("mirror",)),
        ),
        needs=needs_of(VALUES, SECRET),
    ),
    "pod-cloned-ssh": lambda: pod(
        run(volumes=BY_SSH, container=Container(user=1000, large_shm=True)), needs=needs_of(KEYS, SECRET)
    ),
    "secret-keys": lambda: secret(KEYS),
    "secret": lambda: secret(SealedValues(environment=VALUES.environment, logins=VALUES.logins)),
    "secret-pull": lambda: secret(VALUES),
    "pod-claims": lambda: pod(run(volumes=CLAIMS)),
    "pod-data-volume": lambda: pod(
        run(volumes=(ClaimedFolder(mount_path="/sets", claim=SHARED_NAME, read_only=True),))
    ),
    "shared-claim": lambda: shared_manifests.claim_manifest(
        OF_DRIVER, SHARED_NAME, NAMESPACE, SHARED_LABELS, "muster-vision/imagenet"
    ),
    "shared-volume-csi": lambda: shared_manifests.volume_manifest(OF_DRIVER, SHARED_NAME, NAMESPACE, SHARED_LABELS),
    "shared-volume-nfs": lambda: shared_manifests.volume_manifest(OF_NFS, SHARED_NAME, NAMESPACE, SHARED_LABELS),
    "claim": lambda: claim_manifest(
        run(), ClaimedFolder(mount_path="/data"), NEW, namespace=NAMESPACE, cluster_id=CLUSTER
    ),
    "pod-checkpoint-signal": lambda: pod(run(volumes=(SAVES,), stop_by=StopBy(signal="SIGUSR1"), grace_seconds=120)),
    "pod-checkpoint-command": lambda: pod(
        run(volumes=(SAVES,), stop_by=StopBy(arguments=("python", "save.py", "--to", "$(HOME)")))
    ),
    "claim-checkpoint": lambda: claim_manifest(run(), SAVES, SAVED, namespace=NAMESPACE, cluster_id=CLUSTER),
    "claim-block": lambda: claim_manifest(
        run(), ClaimedFolder(mount_path="/device", claim="device"), BLOCK, namespace=NAMESPACE, cluster_id=CLUSTER
    ),
    "pod-of-the-host": lambda: pod(run(volumes=OF_NODES, container=HOST), namespace=RELAXED, security="privileged"),
    "pod-privileged": lambda: pod(run(), namespace=RELAXED, security="privileged"),
    "pod-code": lambda: pod(coded(cpu_milli=500, memory_bytes=GIB, memory_limit_bytes=2 * GIB), code_maps=2),
    "pod-code-restricted": lambda: pod(
        coded(pod_security="restricted", devices=whole(1)), namespace=STRICT, security="restricted", code_maps=1
    ),
    "code-map": lambda: code_map_manifest(
        b"a part of an archive",
        cluster_id=CLUSTER,
        namespace=NAMESPACE,
        digest="0123456789abcdef" * 4,
        number=1,
        labels=manifests.managed_labels(CLUSTER),
    ),
    "pod-ports": lambda: pod(run(ports=PORTS)),
    **{
        f"service-{service.lower()}": partial(
            port_service_manifest,
            service,
            PORTS,
            namespace=NAMESPACE,
            workload_id=run().workload_id,
            workload_name="Two Ranks!",
            pod_set="main",
            cluster_id=CLUSTER,
        )
        for service in types_of(PORTS)
    },
    "service": lambda: manifests.service_manifest(
        names.service_name(rank(0)),
        namespace=NAMESPACE,
        workload_key=names.workload_key_of(rank(0).pod_key),
        workload_name=rank(0).workload_name,
        cluster_id=CLUSTER,
    ),
    "namespace": lambda: manifests.namespace_manifest(
        NAMESPACE, cluster_id=CLUSTER, project_id=run().project_id, project_name="golden"
    ),
    "reservation": lambda: manifests.reservation_manifest(
        cluster_id=CLUSTER,
        namespace=SYSTEM,
        node_name="node-1",
        device=2,
        image="registry.example/muster:0.4",
        service_account="muster-reservation",
    ),
    "fence-map": lambda: manifests.fence_map_manifest(
        cluster_id=CLUSTER, namespace=SYSTEM, shard=3, data={"abcdefghijkl-main-0": "41 491000"}
    ),
    **kinds.cases(CLUSTER, NAMESPACE),
}


def golden(name: str) -> Manifest:
    return yaml.safe_load((GOLDENS / f"{name}.yaml").read_text())


def write() -> None:
    for name, make in CASES.items():
        text = yaml.safe_dump(make(), sort_keys=False, allow_unicode=True, width=120)
        (GOLDENS / f"{name}.yaml").write_text(text)


if __name__ == "__main__":
    write()
