"""Rules on how a pod's container is made: its user and rights, its image, its terminal, and addresses beside it. Pure.

Rows R13, R20, R22, R23, R24, S018, S023 and S032 of the requirements.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from events.cluster import ClusterKind
from events.fields.at_once import Lines, each_once
from events.project import Project
from events.workload.fields.metadata import RelatedUrl
from events.workload.fields.security import SecuritySpec
from events.workload.pod_sets import BASELINE_CAPABILITIES
from events.workload.spec import MOST_GROUP_ID, TrainingSpec, group_ids
from services.api.issues import Issue, PolicyRule, fault, shown
from services.api.storage_rules import SECRET_NAMES, check_secret_name

RESTRICTED_CAPABILITIES: Final = frozenset({"NET_BIND_SERVICE"})
"""Those of `restricted`."""

MAX_GROUPS_CHARACTERS: Final = 1_000
"""Of supplementalGroups: a hundred of them. The contract sets no limit."""
_PLAIN_ADDRESSES: Final = Lines(r"https?://[A-Za-z0-9.-]++(?::[1-9][0-9]{0,3}+)?(?:/[!-~]*+)?")
"""Of the web. Others may be sound, too."""
_DEFAULT: Final = SecuritySpec()
_IDS: Final = (("runAsUid", "run_as_uid"), ("runAsGid", "run_as_gid"), ("supplementalGroups", "supplemental_groups"))


def check_terminal(spec: TrainingSpec) -> Iterator[Issue]:
    """R20."""
    if spec.tty and not spec.stdin:
        yield fault("spec.tty", "needs stdin: give stdin true, or leave tty out", "canAdd", "spec.stdin")


def check_pull_secrets(spec: TrainingSpec) -> Iterator[Issue]:
    """S018."""
    names = [secret.name for secret in spec.image_pull_secrets]
    if each_once(names) and SECRET_NAMES.match(names):
        return
    seen: set[str] = set()
    for index, secret in enumerate(spec.image_pull_secrets):
        if secret.name in seen:
            yield fault(f"spec.imagePullSecrets[{index}].name", f"{shown(secret.name)} is given twice; leave one out")
        elif not secret.user_credential and not secret.exclude:
            yield from check_secret_name(f"spec.imagePullSecrets[{index}].name", secret.name)
        seen.add(secret.name)


def check_security(spec: TrainingSpec) -> Iterator[Issue]:
    """R22, R23, R24."""
    security = spec.security
    yield from _identity(security)
    for index, capability in enumerate(security.capabilities):
        field = f"spec.security.capabilities[{index}]"
        if capability in security.capabilities[:index]:
            yield fault(field, f"{capability} is given twice; leave one out")
    if security.seccomp_profile_type == "Localhost":
        details = "Localhost is not possible yet; give RuntimeDefault, or leave it out"
        yield fault("spec.security.seccompProfileType", details, "options")


def _identity(security: SecuritySpec) -> Iterator[Issue]:
    source, user = "spec.security.uidGidSource", "spec.security.runAsUid"
    if security.uid_gid_source != "custom":
        for name, attribute in _IDS:
            if getattr(security, attribute) != getattr(_DEFAULT, attribute):
                details = f"is possible only where uidGidSource is custom; it is {security.uid_gid_source}"
                yield fault(f"spec.security.{name}", details, "canAdd", source)
    for name, number in (("runAsUid", security.run_as_uid), ("runAsGid", security.run_as_gid)):
        if number is not None and not 0 <= number <= MOST_GROUP_ID:
            rule: PolicyRule = "min" if number < 0 else "max"
            yield fault(f"spec.security.{name}", f"must be between 0 and {MOST_GROUP_ID}, got {number}", rule)
    if len(security.supplemental_groups) > MAX_GROUPS_CHARACTERS:
        details = f"has {len(security.supplemental_groups)} characters; at most {MAX_GROUPS_CHARACTERS} are possible"
        yield fault("spec.security.supplementalGroups", details, "max")
    try:
        group_ids(security.supplemental_groups)
    except ValueError as error:
        details = f"{shown(security.supplemental_groups)} names no groups: {error}"
        yield fault("spec.security.supplementalGroups", details)
    if security.run_as_non_root and security.run_as_uid == 0:
        details = "0 is root, and runAsNonRoot is true; give another user"
        yield fault(user, details, "min", "spec.security.runAsNonRoot")


def check_related_urls(spec: TrainingSpec) -> Iterator[Issue]:
    """R13, R37. The console makes links of them: no other scheme than those of the web."""
    urls = [related.url or "" for related in spec.related_urls]
    types = {related.type for related in spec.related_urls}
    names = [related.name for related in spec.related_urls if related.name]
    if _PLAIN_ADDRESSES.match(urls) and all(type_ and type_.strip() for type_ in types) and each_once(names):
        return
    seen: set[str] = set()
    for index, related in enumerate(spec.related_urls):
        path = f"spec.relatedUrls[{index}]"
        if related.name and related.name in seen:
            yield fault(f"{path}.name", f"{shown(related.name)} is given twice; leave one out")
        seen.add(related.name)
        if not related.exclude:
            yield from _related_url(path, related)
        elif not related.name:
            details = "is required where exclude is true: the name of the item to leave out"
            yield fault(f"{path}.name", details, "required", f"{path}.exclude")


def _related_url(path: str, related: RelatedUrl) -> Iterator[Issue]:
    if related.type is None:
        yield fault(f"{path}.type", "is required: what is found there, such as wandb", "required")
    elif not related.type.strip():
        yield fault(f"{path}.type", "is empty; say what is found there, such as wandb", "min")
    if related.url is None:
        yield fault(f"{path}.url", "is required, such as https://host/path", "required")
    elif not _is_address(related.url):
        yield fault(f"{path}.url", f"{shown(related.url)} is no address; write it as https://host/path")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # What stands before an @ is a password, or leads the eye astray;
        # a backslash ends the host for browsers, and not here.
        fit = not {"@", "\\"} & {*parts.netloc} and parts.port != 0
        fit = fit and parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        return False
    return fit and url.isprintable() and " " not in url


def check_restricted(spec: TrainingSpec) -> Iterator[Issue]:
    """What a project that keeps to Pod Security `restricted` does not let a pod have."""
    security, rule = spec.security, "the project's podSecurity is restricted"
    if security.allow_privilege_escalation:
        field = "spec.security.allowPrivilegeEscalation"
        yield fault(field, f"is not possible: {rule}; leave it out", "blocked", "projectId")
    for index, capability in enumerate(security.capabilities):
        if capability not in RESTRICTED_CAPABILITIES:
            field = f"spec.security.capabilities[{index}]"
            yield fault(field, f"{capability} is not possible: {rule}; leave it out", "blocked", "projectId")
    if security.run_as_uid == 0:
        yield fault("spec.security.runAsUid", f"0 is root: {rule}; give another user", "blocked", "projectId")
    for index, volume in enumerate(spec.storage.nfs):
        if volume.exclude:
            continue
        yield fault(f"spec.storage.nfs[{index}]", f"is not possible: {rule}; leave it out", "blocked", "projectId")


def check_privileged(spec: TrainingSpec, project: Project) -> Iterator[Issue]:
    """S059, S023: what Pod Security `baseline` forbids, in a project that is not privileged."""
    if project.privileged:
        return
    security, probe = spec.security, spec.probes.readiness
    asked = None if probe is None or probe.handler is None else probe.handler.http_get
    beyond = {
        "spec.probes.readiness.handler.httpGet.host": "a host that nodes ask" if asked and asked.host else "",
        "spec.security.hostNetwork": "the network of the node" if security.host_network else "",
        "spec.security.hostIpc": "memory and semaphores of the node" if security.host_ipc else "",
        "spec.security.seccompProfileType": "Unconfined" if security.seccomp_profile_type == "Unconfined" else "",
        **{
            f"spec.security.capabilities[{index}]": f"capability {capability}"
            for index, capability in enumerate(security.capabilities)
            if capability not in BASELINE_CAPABILITIES
        },
        **{
            f"spec.storage.hostPath[{index}]": "a path of the node"
            for index, volume in enumerate(spec.storage.host_path)
            if not volume.exclude
        },
    }
    for field, what in beyond.items():
        if what:
            details = (
                f"{what} is for projects with the setting privileged, which an administrator sets: "
                f"muster project set {project.name} --privileged on"
            )
            yield fault(field, details, "blocked", "projectId")


def check_container(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """What only clusters that run images have."""
    if kind == "kubernetes":
        return
    given = {
        "imagePullPolicy": spec.image_pull_policy is not None,
        "imagePullSecrets": any(not secret.exclude for secret in spec.image_pull_secrets),
        "stdin": spec.stdin,
        "tty": spec.tty,
        "security": spec.security != _DEFAULT,
    }
    for name, is_given in given.items():
        if is_given:
            details = f"is for clusters of kind kubernetes; one of kind {kind} runs no images, so leave it out"
            yield fault(f"spec.{name}", details, "canAdd", "clusterId")


def check_home(spec: TrainingSpec) -> Iterator[Issue]:
    """S025."""
    if spec.create_home_dir and any(
        variable.name == "HOME" and not variable.exclude for variable in spec.environment_variables
    ):
        details = "names the home folder, and so does the variable HOME; leave one of them out"
        yield fault("spec.createHomeDir", details, "canAdd", "spec.environmentVariables")
