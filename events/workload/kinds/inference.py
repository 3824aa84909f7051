"""An inference: replicas that answer requests, as many as their load needs. It runs until it is deleted: a replica that
ends, however it does, is run again.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from events.workload.fields.creation import InferenceCreation
from events.workload.fields.inference import DEFAULT_MODEL_KEY, MOST_REPLICAS, ServedModel, Serving, ServingPort
from events.workload.fields.process import EnvironmentVariable, UserCredentialKey
from events.workload.fields.scheduling import DEFAULT_INFERENCE_PRIORITY
from events.workload.kinds.kind import Kind
from events.workload.kinds.training import template
from events.workload.pod_sets import ContainerPort, PodSet, PodTemplate
from events.workload.spec import Beside, Inference, InferenceSpec, TrainingSpec, shown, with_defaults

REPLICA: Final = "replica"
PORT_VARIABLE: Final = "PORT"
"""Under which servers commonly look for where to listen."""
MODEL_VARIABLE: Final = "MODEL_ID"
"""Under which Hugging Face's own servers look for the model to serve."""
TOKEN_VARIABLE: Final = "HF_TOKEN"  # noqa: S105 (a name)
"""Under which Hugging Face's libraries look for who asks."""
_ALONE: Final = Inference(serving=Serving(serving_port=ServingPort(container=8000)), replicas=1)
"""Of a spec without any: what nobody decides, and an event may say all the same."""


def pod_sets(spec: TrainingSpec, beside: Beside) -> tuple[PodSet, ...]:
    inference = _inference(beside)
    replicas = min(max(inference.replicas, 0), MOST_REPLICAS)
    return (
        PodSet(
            name=REPLICA,
            count=replicas,
            parallelism=replicas,
            endless=True,
            template=_template(spec, inference.serving),
            ports=(ContainerPort(container=inference.serving.serving_port.container, variable=PORT_VARIABLE),),
            node_pools=spec.node_pools,
            pod_affinity=spec.pod_affinity,
        ),
    )


def variables(serving: Serving) -> dict[str, str]:
    """What the replicas are told beside what the spec says."""
    port = {PORT_VARIABLE: str(serving.serving_port.container)}
    return port if serving.model is None else port | {MODEL_VARIABLE: serving.model.name}


def shown_spec(spec: TrainingSpec, beside: Beside) -> InferenceSpec:
    return shown(InferenceSpec, spec, _inference(beside).serving)


def never_completed(_: tuple[PodSet, ...], __: Mapping[str, int]) -> bool:
    return False


def _template(spec: TrainingSpec, serving: Serving) -> PodTemplate:
    made = template(spec)
    told = tuple(EnvironmentVariable(name=name, value=value) for name, value in variables(serving).items())
    return replace(made, environment=(*made.environment, *told, *_token(serving.model)))


def _token(model: ServedModel | None) -> tuple[EnvironmentVariable, ...]:
    if model is None or model.credential is None:
        return ()
    credential = UserCredentialKey(name=model.credential.name, key=model.credential.key or DEFAULT_MODEL_KEY)
    return (EnvironmentVariable(name=TOKEN_VARIABLE, user_credential=credential),)


def _inference(beside: Beside) -> Inference:
    return beside if isinstance(beside, Inference) else _ALONE


INFERENCE: Final = Kind(
    name="Inference",
    kubernetes_name="InferenceWorkload",
    collection="inferences",
    priority=DEFAULT_INFERENCE_PRIORITY,
    creation=InferenceCreation,
    shown=shown_spec,
    with_defaults=with_defaults,
    pod_sets=pod_sets,
    completed=never_completed,
    backoff_limit=lambda _: None,
)
