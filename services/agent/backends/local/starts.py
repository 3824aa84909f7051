"""What a run needs before it begins: whether it can be here at all, its devices, ports and claims, and what is written
down of it.
"""

import msgspec

from events.cluster_protocol import ObservedPod, RunPod
from events.phases import NO_CLAIM, NO_COMMAND, NO_VOLUME, NODE_PORT_TAKEN
from services.agent.backends.interface import BAD_CODE, NO_CREDENTIALS
from services.agent.backends.local import shim
from services.agent.backends.local.claims import ClaimError, Claims
from services.agent.backends.local.config_files import ConfigFolders, NoFilesError
from services.agent.backends.local.environment import LocalMachine, held_devices, pod_environment
from services.agent.backends.local.files import with_copies
from services.agent.backends.local.gpus import Gpus, NoSuchDeviceError, choose
from services.agent.backends.local.mpi import TEMPORARY, Meetings, is_server
from services.agent.backends.local.ports import PortTakenError, choose_ports, held_ports, moved_ports, port_variables
from services.agent.backends.local.program import program_of
from services.agent.backends.local.run_folder import ExitFile, LaidVolume, RunFile, RunFolder, ShimRun
from services.agent.backends.local.runs import HOME, WORK, Run, Runs, now, own_folders
from services.agent.backends.local.volumes import (
    config_files,
    impossible_volume,
    laid_volumes,
    preparations,
    untouched_folders,
)
from services.agent.backends.privileged import NOT_PRIVILEGED, beyond_baseline
from services.agent.backends.sources import NO_SUCH_SOURCE, missing_sources


class Starts:
    def __init__(
        self,
        machine: LocalMachine,
        node_name: str,
        runs: Runs,
        *,
        claims: Claims,
        config_folders: ConfigFolders,
        meetings: Meetings,
        gpus: Gpus,
    ) -> None:
        self._machine = machine
        self._node_name = node_name
        self._runs = runs
        self._claims = claims
        self._config_folders = config_folders
        self._meetings = meetings
        self._gpus = gpus

    def starting(self, pod: RunPod) -> ObservedPod:
        return ObservedPod(
            pod_key=pod.pod_key,
            token=pod.token,
            workload_id=pod.workload_id,
            pod=pod.pod,
            kind="starting",
            at=now(),
            node_name=self._node_name,
            note=self._what_is_run(pod),
        )

    def _what_is_run(self, pod: RunPod) -> str:
        """What a person must know of a run here, where neither image nor limits act."""
        program = (
            "it waits for mpirun with a program of Muster's"
            if is_server(pod)
            else program_of(pod.arguments, pod_environment(pod, self._machine, ()))
        )
        image = f"image {pod.image!r} is recorded, not pulled{': ' if program else ''}{program}"
        return f"{image}; CPU and memory limits are not enforced here"

    def found_again(self, file: RunFile, folder: RunFolder) -> Run:
        """A run that an earlier agent started, as it was written down."""
        pod, environment = file.pod, file.shim.environment
        seen = self.starting(pod)
        ports = held_ports(pod, environment)
        if moved := moved_ports(ports):
            seen = msgspec.structs.replace(seen, note=f"{seen.note}; {moved}")
        return Run(pod=pod, folder=folder, seen=seen, devices=held_devices(pod, environment), ports=ports)

    def refusal(self, run: Run, problem: str) -> ExitFile | None:
        """Why this run cannot be started here, as its end; else it has its devices, claims and ports. Raises OSError.

        Args:
            problem: that with the code that it is to run; empty where there is none.
        """
        refusal = self._impossible(run)
        if problem and refusal is None:
            refusal = ExitFile(ended_at=now().timestamp(), kind="failed", reason=BAD_CODE, message=problem)
        return refusal or self._claim(run.pod) or self._copy_files(run) or self._take_ports(run)

    def _impossible(self, run: Run) -> ExitFile | None:
        """Why this run cannot be started here, as its end; else it holds its devices."""
        at, pod = now().timestamp(), run.pod
        if pod.node_name != self._node_name:
            message = f"this cluster's only node is {self._node_name!r}, not {pod.node_name!r}"
            return ExitFile(ended_at=at, kind="refused", reason="no_such_node", message=message)
        numbers = [share.device for share in pod.devices]
        held = {number: name for other in self._runs.all() if other.live for number, name in other.devices.items()}
        try:
            names = choose(numbers, held, [gpu.name for gpu in self._gpus.devices])
        except NoSuchDeviceError as error:
            return ExitFile(ended_at=at, kind="refused", reason="no_such_device", message=str(error))
        if not self._meetings.arguments(pod):
            message = (
                f"the local cluster pulls no images, so it cannot know the entry point of {pod.image!r}: "
                "give it a command, which stands behind the flags: -- program"
            )
            return ExitFile(ended_at=at, kind="failed", reason=NO_COMMAND, message=message)
        if pod.no_credentials:
            return ExitFile(ended_at=at, kind="failed", reason=NO_CREDENTIALS, message=pod.no_credentials)
        if message := missing_sources(pod, "local"):
            return ExitFile(ended_at=at, kind="failed", reason=NO_SUCH_SOURCE, message=message)
        if message := beyond_baseline(pod):
            return ExitFile(ended_at=at, kind="failed", reason=NOT_PRIVILEGED, message=message)
        if message := impossible_volume(pod, isolated=self._machine.isolation is not None):
            return ExitFile(ended_at=at, kind="failed", reason=NO_VOLUME, message=message)
        run.devices = dict(zip(numbers, names, strict=True))
        return None

    def _claim(self, pod: RunPod) -> ExitFile | None:
        """Have its claims there, or say as its end why they cannot be. Raises OSError."""
        try:
            self._claims.ensure(pod)
        except ClaimError as error:
            return ExitFile(ended_at=now().timestamp(), kind="failed", reason=NO_CLAIM, message=str(error))
        return None

    def _copy_files(self, run: Run) -> ExitFile | None:
        """Have the files of its ConfigMaps and Secrets there, or say as its end which cannot be. Raises OSError."""
        try:
            for volume, folder in config_files(run.pod, run.folder.path):
                self._config_folders.copy(run.pod, volume, folder)
        except NoFilesError as error:
            return ExitFile(ended_at=now().timestamp(), kind="failed", reason=NO_VOLUME, message=str(error))
        return None

    def _take_ports(self, run: Run) -> ExitFile | None:
        """Have its ports, or say as its end which it cannot have."""
        others = [other for other in self._runs.all() if other.live]
        held = {port.port for other in others for port in other.ports} | self._machine.own_ports
        same = [other for other in others if other.pod.workload_id == run.pod.workload_id]
        try:
            run.ports = choose_ports(run.pod, held, {port.port for other in same for port in other.ports})
        except PortTakenError as error:
            return ExitFile(ended_at=now().timestamp(), kind="failed", reason=NODE_PORT_TAKEN, message=str(error))
        if moved := moved_ports(run.ports):
            run.seen = msgspec.structs.replace(run.seen, note=f"{run.seen.note}; {moved}")
        return None

    def write(self, run: Run) -> None:
        pod, gpus = run.pod, {gpu.name: gpu for gpu in self._gpus.devices}
        work, isolation = str(run.folder.path / WORK), self._machine.isolation
        own = tuple(str(run.folder.path / name) for name in own_folders(pod))
        if isolation is not None:
            hidden = with_copies(isolation.hidden)
            isolation = msgspec.structs.replace(
                isolation,
                hidden=hidden,
                kept=(*own, *self._meetings.kept(pod)),
                volumes=() if run.refused else self._laid(run, work),
                untouched=untouched_folders(pod, self._machine.home),
            )
        environment = pod_environment(
            pod,
            self._machine,
            [gpus[name] for name in run.devices.values()],
            home=str(run.folder.path / HOME) if pod.container.home else "",
            more=port_variables(pod, run.ports) | self._meetings.variables(pod),
        )
        if isolation is not None:
            work = self._meetings.work(pod) or work
        what = ShimRun(
            arguments=self._meetings.arguments(pod),
            environment=environment,
            prepare=preparations(pod, run.folder.path, environment),
            working_dir=work if pod.code else pod.working_dir or work,
            log_max_bytes=self._machine.log_max_bytes,
            stop_by=pod.stop_by,
            isolation=isolation,
        )
        content: dict[str, object] = msgspec.to_builtins(RunFile(pod=pod, shim=what))
        shim.write_record(str(run.folder.path), "run.json", content)

    def _laid(self, run: Run, work: str) -> tuple[LaidVolume, ...]:
        pod = run.pod
        own = laid_volumes(pod, run.folder.path, lambda claim: self._claims.folder_of(pod, claim))
        return (*self._meetings.laid(pod, work, str(run.folder.path / TEMPORARY)), *own)
