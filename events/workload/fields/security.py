"""Who the process is within its container, and what it may do there (S022, S023)."""

from typing import Annotated, Literal

from events.fields.declare import About, Section
from events.fields.values import Int64

Capability = Literal[
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "SETGID",
    "SETFCAP",
    "SETPCAP",
    "SETUID",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "SYSLOG",
    "WAKE_ALARM",
]
"""POSIX capabilities, as the contract names them."""


class SecuritySpec(Section, frozen=True, kw_only=True):
    """User, groups and rights of the process. Only on clusters of kind kubernetes. Null: what the image and the
    project's namespace say.
    """

    uid_gid_source: Annotated[
        Literal["fromTheImage", "fromIdpToken", "custom"], About(rows="S022 C8", flag="--user-group-source")
    ] = "fromTheImage"
    """Where user and groups come from. fromIdpToken: from the token with which the workload is submitted."""
    run_as_uid: Annotated[Int64 | None, About(rows="S022 R22", flag="--run-as-uid")] = None
    """User id of the process. Given only with uidGidSource custom."""
    run_as_gid: Annotated[Int64 | None, About(rows="S022 R22", flag="--run-as-gid")] = None
    """Primary group id of the process. Given only with uidGidSource custom."""
    supplemental_groups: Annotated[str, About(rows="S022 R22", flag="--supplemental-groups")] = ""
    """More group ids, comma separated. Given only with uidGidSource custom. Empty: the image's own."""
    run_as_non_root: Annotated[bool, About(rows="S023", flag="--run-as-non-root")] = False
    """Refuse to start as root."""
    allow_privilege_escalation: Annotated[bool | None, About(rows="S023", flag="--allow-privilege-escalation")] = None
    """Whether the process may gain more rights than its parent, as by sudo. Default: false where the namespace keeps to
    Pod Security baseline or restricted.
    """
    capabilities: Annotated[tuple[Capability, ...], About(rows="S023", flag="--capability")] = ()
    """Linux capabilities to add. Those beyond Pod Security baseline need a privileged project."""
    read_only_root_filesystem: Annotated[bool, About(rows="S023", flag="--read-only-root-filesystem")] = False
    """Whether the image's files cannot be changed."""
    seccomp_profile_type: Annotated[
        Literal["RuntimeDefault", "Unconfined", "Localhost"] | None, About(rows="S023 R24", flag="--seccomp-profile")
    ] = None
    """Filter of system calls. Default: RuntimeDefault. Unconfined needs a privileged project. Localhost is refused."""
    host_network: Annotated[bool, About(rows="S023", flag="--host-network")] = False
    """Whether the pod uses the network of its node. Needs a privileged project."""
    host_ipc: Annotated[bool, About(rows="S023", flag="--host-ipc")] = False
    """Whether the pod shares memory and semaphores with its node. Needs a privileged project."""
