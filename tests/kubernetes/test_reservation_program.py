"""The program in a reservation pod, as a process with the credentials that such a pod has."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from development.kubernetes.control_plane import ControlPlane
from services.agent.backends.kubernetes.act.manifests import reservation_manifest
from services.agent.backends.kubernetes.names import DEVICE_PROBLEM, VISIBLE_DEVICES
from services.agent.reservation import annotations
from tests.support.kube import client_of, namespace

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

REPOSITORY = Path(__file__).parents[2]
ACCOUNT = "muster-gpu-reservation"


class Site:
    """A reservation pod on a node that is not there: only its program, run here, does anything."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.control_plane = control_plane
        self.space = namespace(control_plane, f"reservation-{secrets.token_hex(4)}")
        meta = {"name": ACCOUNT, "namespace": self.space}
        control_plane.apply([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}])
        token = control_plane.service_account_token(self.space, ACCOUNT)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(control_plane.ca_file.read_bytes())
        self.token, self.folder = token, folder
        manifest = reservation_manifest(
            cluster_id="c0ffee",
            namespace=self.space,
            node_name="no-such-node",
            device=0,
            image="muster",
            service_account=ACCOUNT,
        )
        self.name = manifest["metadata"]["name"]
        control_plane.admin("POST", f"/api/v1/namespaces/{self.space}/pods", manifest)

    def allow(self) -> None:
        """The rights that deploy/kubernetes gives."""
        objects = [*yaml.safe_load_all((REPOSITORY / "deploy/kubernetes/reservations.yaml").read_text())]
        for found in objects:
            found["metadata"]["namespace"] = self.space
            for subject in found.get("subjects", []):
                subject["namespace"] = self.space
        self.control_plane.apply(objects)

    @asynccontextmanager
    async def program(self, **environment: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys, pathlib, services.agent.reservation as it; it.main(pathlib.Path(sys.argv[1]))",
            str(self.folder),
            cwd=REPOSITORY,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                "PATH": os.environ["PATH"],
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": self.control_plane.url.rsplit(":", 1)[1],
                "MUSTER_POD_NAME": self.name,
                "MUSTER_POD_NAMESPACE": self.space,
                **environment,
            },
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def said(self, annotation: str) -> str:
        path = f"/api/v1/namespaces/{self.space}/pods/{self.name}"
        async with asyncio.timeout(60):
            while True:
                found = self.control_plane.admin("GET", path)["metadata"]["annotations"]
                if annotation in found:
                    return found[annotation]
                await asyncio.sleep(0.05)


@pytest.fixture
def site(control_plane: ControlPlane, tmp_path: Path) -> Site:
    return Site(control_plane, tmp_path)


async def test_the_program_says_which_device_it_was_given_and_goes_when_told(site: Site) -> None:
    site.allow()
    async with site.program(NVIDIA_VISIBLE_DEVICES="GPU-7") as process:
        assert await site.said(VISIBLE_DEVICES) == "GPU-7"
        # Now, or once it only waits: it goes either way.
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_the_program_holds_the_device_until_it_is_told_to_go(site: Site) -> None:
    site.allow()
    async with site.program(NVIDIA_VISIBLE_DEVICES="GPU-7") as process:
        command = Path(f"/proc/{process.pid}/cmdline")
        async with asyncio.timeout(60):
            while b"sigwait" not in command.read_bytes():
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_the_program_says_why_it_does_not_know_its_device(site: Site) -> None:
    site.allow()
    async with site.program(NVIDIA_VISIBLE_DEVICES="void"):
        assert "NVIDIA_VISIBLE_DEVICES is 'void'" in await site.said(DEVICE_PROBLEM)


async def test_the_program_tries_until_it_may_write(site: Site) -> None:
    async with site.program(NVIDIA_VISIBLE_DEVICES="GPU-7") as process:
        await asyncio.sleep(1)
        assert process.returncode is None
        site.allow()
        assert await site.said(VISIBLE_DEVICES) == "GPU-7"


async def test_its_credentials_are_good_for_nothing_else(site: Site) -> None:
    site.allow()
    async with client_of(site.control_plane, site.token) as client:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        for attributes in (
            {"verb": "get", "resource": "pods"},
            {"verb": "patch", "resource": "pods"},
            {"verb": "patch", "resource": "pods", "subresource": "status", "namespace": "kube-system"},
            {"verb": "delete", "resource": "pods"},
            {"verb": "create", "resource": "pods", "subresource": "exec"},
            {"verb": "get", "resource": "secrets"},
        ):
            spec = {"resourceAttributes": {"namespace": site.space, **attributes}}
            answer = await client.create(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review | {"spec": spec}
            )
            assert b'"allowed":false' in answer, attributes


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("GPU-1", {VISIBLE_DEVICES: "GPU-1"}),
        ("0", {VISIBLE_DEVICES: "0"}),
        (" GPU-1\n", {VISIBLE_DEVICES: "GPU-1"}),
        ("", "is not set"),
        ("void", "is 'void'"),
        ("all", "is 'all'"),
        ("none", "is 'none'"),
        ("/var/run/nvidia-container-devices", "is '/var/run/nvidia-container-devices'"),
    ],
)
async def test_what_counts_as_a_device(visible: str, said: dict[str, str] | str) -> None:
    found = annotations(visible)
    assert found == said if isinstance(said, dict) else said in found[DEVICE_PROBLEM]
