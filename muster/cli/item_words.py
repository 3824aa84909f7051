"""What Run:ai's command line calls the fields of an item, and its words that stand alone, such as `ephemeral`: with the
fields that they mean. By the name of the list.
"""

from collections.abc import Mapping, Sequence
from typing import Final

_PVC: Final = "pvc"
_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "exposedUrls": {"authusers": "authorizedUsers", "authgroups": "authorizedGroups"},
    "ports": {"service-type": "serviceType"},
    _PVC: {"storageclass": "claimInfo.storageClass", "size": "claimInfo.size", "volumemode": "claimInfo.volumeMode"},
    "git": {"secret": "secretRef.name", "rev": "revision"},
    "hostPath": {"mount": "mountPath", "mount-propagation": "mountPropagation"},
    "s3": {"accesskey": "accessKeySecret"},
    "secretVolume": {"path": "mountPath"},
    "configMapVolume": {"path": "mountPath"},
}
_ACCESS: Final = "claimInfo.accessModes."
_MODES: Final[Mapping[str, str]] = {
    "accessmode-rwo": "readWriteOnce",
    "accessmode-rom": "readOnlyMany",
    "accessmode-rwm": "readWriteMany",
}
_ALONE: Final[Mapping[str, Mapping[str, tuple[str, bool]]]] = {
    _PVC: {"ro": ("readOnly", True), **{word: (f"{_ACCESS}{mode}", True) for word, mode in _MODES.items()}},
    "hostPath": {"readwrite": ("readOnly", False)},
    "nfs": {"readwrite": ("readOnly", False)},
}
_CALLED_NAME: Final[Mapping[str, str]] = {"secretVolume": "secret", "configMapVolume": "configMap"}
"""What `name` says beside `path`, which is no word of ours: the Secret or the ConfigMap, and not the item."""


def field_of(of: str, word: str, parts: Sequence[str]) -> str:
    """The field that a word before `=` means.

    Args:
        parts: of the whole item.
    """
    if word == "name" and of in _CALLED_NAME and any(part.lower().startswith("path=") for part in parts):
        return _CALLED_NAME[of]
    return _FIELDS.get(of, {}).get(word.lower(), word)


def alone(of: str, word: str, parts: Sequence[str]) -> Mapping[str, bool]:
    """What a word without `=` says; nothing where it is none of those."""
    found = _ALONE.get(of, {}).get(word.lower())
    if found is None:
        return {}
    field, value = found
    # Modes that are named are all that is asked for; where none is, one node reads and writes.
    no_default = field.startswith(_ACCESS) and not any(part.lower() == "accessmode-rwo" for part in parts)
    return {field: value} | ({f"{_ACCESS}readWriteOnce": False} if no_default else {})


def words_of(of: str) -> Sequence[str]:
    """All words that stand alone."""
    return tuple(_ALONE.get(of, {}))
