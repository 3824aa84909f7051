"""Books of the nodes: what each has, who holds what of it, summed at every step of the log."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from development.checker.records import Fields
from development.checker.workloads import Wrong

WHOLE_DEVICE_MILLI = 1000


@dataclass
class Node:
    key: str
    name: str = ""
    cluster_id: str = ""
    present: bool = False
    cordoned_by: str = ""
    """Who keeps new pods away with the product's own mark; empty where nobody does."""
    draining: bool = False
    cordoned_for: str = ""
    """Id of the maintenance for which; empty where somebody wants it in any case."""
    maintained: dict[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    """By id of the maintenance for which it was drained: for which beginning, and whether everybody was to end."""
    facts: Fields = field(default_factory=dict[str, object])
    held: dict[str, Fields] = field(default_factory=dict[str, Fields])
    """Reservations by their id."""
    cpu_milli: int = 0
    """Sum of what is held; likewise the two below."""
    memory_bytes: int = 0
    device_milli: Counter[int] = field(default_factory=Counter[int])
    extended: Counter[str] = field(default_factory=Counter[str])
    """By name of the resource."""
    version: int = 0

    @property
    def touched(self) -> int:
        """Devices of which something is held."""
        return sum(milli > 0 for milli in self.device_milli.values())

    def add(self, reservation: Fields, sign: int) -> None:
        self.cpu_milli += sign * reservation.get("cpu_milli", 0)
        self.memory_bytes += sign * reservation.get("memory_bytes", 0)
        for share in reservation.get("devices", []):
            self.device_milli[share["device"]] += sign * share["milli"]
        for each in reservation.get("extended", []):
            self.extended[each["resource"]] += sign * each["amount"]


class Nodes:
    """Takes the events of nodes; what a step as a whole has done to room is asked with `settle`."""

    def __init__(self) -> None:
        self.by_key: dict[str, Node] = {}
        self.held_milli = 0
        """GPU that is held, over all nodes."""
        self.most_milli = 0
        self.reserved: list[tuple[Node, Fields]] = []
        """In this step; likewise the one below."""
        self.released: list[tuple[Node, str]] = []
        self._ever: set[str] = set()

    def take(self, key: str, type_: str, data: Fields, seq: int) -> Iterator[Wrong]:
        node = self.by_key.setdefault(key, Node(key))
        node.version = seq
        match type_:
            case "NodeRegistered":
                node.name, node.cluster_id, node.present, node.facts = (
                    data["name"],
                    data["cluster_id"],
                    True,
                    data["facts"],
                )
            case "NodeChanged":
                node.facts = data["facts"]
            case "NodeRemoved":
                node.present = False
            case "NodeCordoned":
                of = _maintenance(data)
                if node.cordoned_by and (of or not node.cordoned_for):
                    yield "cordon", f"{node.name} is cordoned a second time"
                node.cordoned_by, node.cordoned_for = data["actor"], of
            case "NodeUncordoned":
                if not node.cordoned_by:
                    yield "cordon", f"{node.name} is uncordoned, and was not cordoned"
                if (of := _maintenance(data)) and of not in node.maintained:
                    yield "cordon", f"{node.name} is uncordoned for maintenance {of}, which did not take it out"
                node.cordoned_by, node.cordoned_for, node.draining = "", "", False
                for id_ in data.get("again", []):
                    if node.maintained.pop(id_, None) is None:
                        yield "cordon", f"{node.name} was not out for maintenance {id_}, which is to come again"
            case "NodeDrainStarted":
                if not node.cordoned_by:
                    yield "drain", f"{node.name} is drained, and is not cordoned"
                if of := _maintenance(data):
                    new = data["maintenance"].get("starts_at", ""), data.get("force", False)
                    if (old := node.maintained.get(of)) is not None and (new[0] == old[0] and new[1] <= old[1]):
                        yield "drain", f"{node.name} is drained a second time for maintenance {of}"
                    node.maintained[of] = new
                node.draining = True
            case "NodeDrained":
                if not node.draining or node.held:
                    yield "drain", f"{node.name} is said to be empty: drained {node.draining}, {len(node.held)} held"
                node.draining = False
            case "PodsReserved":
                for reservation in data["reservations"]:
                    yield from self._reserve(node, reservation)
            case "ReservationsReleased":
                for id_ in data["ids"]:
                    yield from self._release(node, id_)
            case _:
                yield "unknown", f"the checker does not know {type_}"

    def _reserve(self, node: Node, reservation: Fields) -> Iterator[Wrong]:
        id_ = reservation["id"]
        if id_ in self._ever:
            yield "reserved", f"{node.name}: {id_} is reserved a second time"
        self._ever.add(id_)
        node.held[id_] = reservation
        node.add(reservation, +1)
        self.held_milli += milli(reservation)
        self.reserved.append((node, reservation))

    def _release(self, node: Node, id_: str) -> Iterator[Wrong]:
        reservation = node.held.pop(id_, None)
        if reservation is None:
            yield "released", f"{node.name}: {id_} is released and was not held"
            return
        node.add(reservation, -1)
        self.held_milli -= milli(reservation)
        self.released.append((node, id_))

    def settle(self) -> Iterator[Wrong]:
        """After a whole step: whether each node has room for what it was given."""
        self.most_milli = max(self.most_milli, self.held_milli)
        for node, reservation in self.reserved:
            yield from _room(node, reservation)
            yield from _devices(node, reservation)


def _maintenance(data: Fields) -> str:
    return (data.get("maintenance") or {}).get("id", "")


def _room(node: Node, new: Fields) -> Iterator[Wrong]:
    facts = node.facts
    closed = not facts.get("ready", True) or facts.get("unschedulable", False)
    if not node.present or closed or node.cordoned_by:
        yield "room", f"{node.name} takes no pods, and got {new['id']}"
    for name, held in (("cpu_milli", node.cpu_milli), ("memory_bytes", node.memory_bytes)):
        used = held + facts.get(f"foreign_{name}", 0)
        if new.get(name, 0) and used > facts.get(name, 0):
            yield "room", f"{node.name} has {name} {facts.get(name, 0)}, and {used} are held"
    for name in (each["resource"] for each in new.get("extended", []) if each["amount"]):
        used = node.extended[name] + facts.get("foreign_extended", {}).get(name, 0)
        if used > facts.get("extended", {}).get(name, 0):
            yield "room", f"{node.name} has {facts.get('extended', {}).get(name, 0)} of {name}, and {used} are held"
    pods, most = len(node.held) + facts.get("foreign_pods", 0), facts.get("max_pods", 110)
    if pods > most:
        yield "room", f"{node.name} takes {most} pods, and has {pods}"


def _devices(node: Node, new: Fields) -> Iterator[Wrong]:
    """The devices that we touch and those of others together are never more than work; a dead one does not work.

    Where the kubelet chooses, our number of a device says nothing about which one it is: the count decides.
    """
    count, foreign = node.facts.get("gpu_count", 0), node.facts.get("foreign_gpus", 0)
    numbers = [share["device"] for share in new.get("devices", [])]
    if numbers and node.touched + foreign > count:
        yield "devices", f"{node.name} has {count} devices: {node.touched} are ours now and {foreign} others'"
    if any(not 0 <= number < count for number in numbers):
        yield "devices", f"{node.name} has {count} devices, and {new['id']} got {numbers}"
    if len(set(numbers)) != len(numbers):
        yield "devices", f"{node.name}: {new['id']} holds one device twice"
    for share in new.get("devices", []):
        used = node.device_milli[share["device"]]
        if share["milli"] <= 0 or used > WHOLE_DEVICE_MILLI:
            yield "devices", f"{node.name} device {share['device']}: {used} thousandths are held"


def milli(reservation: Fields) -> int:
    return sum(share["milli"] for share in reservation.get("devices", []))
