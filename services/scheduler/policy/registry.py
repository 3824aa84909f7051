"""Every rule that the scheduler decides by, in the order in which they count. A new one is a module and a line here."""

from typing import Final

from services.scheduler.planning import Policy
from services.scheduler.policy.filters import (
    calendar,
    cordoned,
    cpu,
    extended,
    gpu,
    memory,
    node_affinity,
    node_type,
    pods,
    taints,
    takes_pods,
    topology,
)
from services.scheduler.policy.orders import aged, first_come
from services.scheduler.policy.phases import (
    clear_nodes,
    consolidate,
    explain,
    grow,
    keep_homes,
    look_again,
    place,
    quota,
    release,
    report,
    take_back,
)
from services.scheduler.policy.scores import free_cpu, free_gpus, gpu_left_over, gpu_price, node_value, soft_taints

POLICY: Final = Policy(
    filters=(
        takes_pods.FILTER,
        cordoned.FILTER,
        calendar.FILTER,
        taints.FILTER,
        node_type.FILTER,
        node_affinity.FILTER,
        topology.FILTER,
        gpu.FILTER,
        cpu.FILTER,
        memory.FILTER,
        extended.FILTER,
        pods.FILTER,
    ),
    scores=(
        soft_taints.SCORE,
        gpu_price.SCORE,
        node_value.SCORE,
        gpu_left_over.SCORE,
        free_gpus.SCORE,
        free_cpu.SCORE,
    ),
    orders=(
        aged.ORDER,
        first_come.ORDER,
    ),
    phases=(
        release.PHASE,
        clear_nodes.PHASE,
        quota.PHASE,
        keep_homes.PHASE,
        place.PHASE,
        take_back.PHASE,
        consolidate.PHASE,
        look_again.PHASE,
        explain.PHASE,
        grow.PHASE,
        report.PHASE,
    ),
)
