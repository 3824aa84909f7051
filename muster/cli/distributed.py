"""`muster training pytorch` and its sisters: distributed trainings, by framework."""

from collections.abc import Mapping
from typing import Any, Final

import typer

from muster.cli.command import MusterGroup
from muster.cli.describe import add_describe
from muster.cli.exits import usage
from muster.cli.submit import Submitted, add_submit
from muster.cli.values import Row, row_of, set_field
from muster.cli.ways import add_ways
from muster.cli.workload import add_list, add_logs
from muster.cli.workload_acts import add_acts

FRAMEWORKS: Final = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "xgboost": "XGBoost", "jax": "JAX", "mpi": "MPI"}
"""By the word of the command line."""
_EXAMPLES: Final = """
        muster training {word} submit bert -i {word} -g 8 --workers 3 --command -- python train.py
        muster training {word} submit small -i {word} --workers 4 --no-master -- train.py
        muster training {word} submit two -i {word} -g 1 --workers 2 --master-gpu-devices-request 0 -- train.py
        """
_SUMMARY: Final = "Submit a distributed training with {framework}: a master and workers that find each other."
_MPI_EXAMPLES: Final = """
        muster training mpi submit pi -i mpi --workers 3 --master-command "mpirun -n 3 python pi.py"
        muster training mpi submit big -i mpi -g 8 --workers 2 --slots-per-worker 8 --master-command "mpirun train"
        """
_MPI_SUMMARY: Final = "Submit a distributed training with MPI: a master that calls mpirun, and workers that it reaches."


def add_frameworks(training: typer.Typer) -> None:
    """Declares a group for each framework. What else there is stands in `muster training` and `workload`."""
    for word, framework in FRAMEWORKS.items():
        app = typer.Typer(
            cls=MusterGroup,
            help=f"Distributed trainings with {framework}: submit, list, inspect, suspend, resume, delete.",
            no_args_is_help=True,
            rich_markup_mode=None,
        )
        submitted = Submitted(
            noun=f"training {word}",
            kind="Distributed",
            summary=_MPI_SUMMARY if framework == "MPI" else _SUMMARY.format(framework=framework),
            examples=_MPI_EXAMPLES if framework == "MPI" else _EXAMPLES.format(word=word),
            framework=framework,
        )
        add_submit(app, submitted)
        noun = f"training {word}"
        add_list(app, noun, kind="Distributed", framework=framework)
        add_describe(app, noun)
        add_logs(app, noun)
        add_acts(app, noun, kind="Distributed", framework=framework)
        add_ways(app, noun)
        training.add_typer(app, name=word)


def set_distributed(request: Row, framework: str, given: Mapping[str, Any], *, brings_volumes: bool) -> None:
    """The framework, and whether there is a master and how it is made: as the workers, but for what flags say of it.
    Raises Problem (usage). Args: brings_volumes, whether flags name a template or data sources.
    """
    from events.workload.spec import OF_WORKERS, MasterSpec

    set_field(request, "spec.distributedFramework", framework)
    own: Row = row_of(request, "masterSpec")
    if given.get("master_no_pvcs"):
        own = {**own, "storage": _without_claims(request, own, brings_volumes=brings_volumes)}
    if given.get("no_master"):
        if own:
            raise usage("--no-master goes with no other flag or field of a master", todo="leave one of them out")
        request["masterSpecSameAsWorker"] = False
    elif own:
        spec = row_of(request, "spec")
        # Volumes and probes that it does not name are the workers', with what assets and policies add to them.
        names = [name for name in MasterSpec.__struct_encode_fields__ if name not in OF_WORKERS]
        inherited = {name: spec[name] for name in names if name in spec}
        request["masterSpec"] = {**inherited, **own, "compute": {**row_of(spec, "compute"), **row_of(own, "compute")}}


def _without_claims(request: Row, own: Row, *, brings_volumes: bool) -> Row:
    """The volumes of a master that has no persistent volume claims. Raises Problem (usage)."""
    in_file = bool(row_of(request, "assets").get("datasourceIds") or request.get("templateId"))
    if "storage" not in own and (brings_volumes or in_file):
        raise usage(
            "--master-no-pvcs goes with no --datasource and no --template: what they add to the volumes of the workers "
            "is not known here",
            todo="name all volumes of the master in a file (masterSpec.storage), for submit -f",
        )
    storage = row_of(own if "storage" in own else row_of(request, "spec"), "storage")
    # Null, and not an empty list: it also clears what a policy has by default.
    return {**storage, "pvc": None}
