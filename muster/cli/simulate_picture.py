"""Outcomes of a simulation as a picture: waiting times, what is in use and who waits over time, and shares."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from muster.cli.exits import usage
from muster.cli.picture import new_figure
from muster.cli.simulate_show import Shown
from services.scheduler.simulation.figures import Sample

FORMS: Final = {".png": "png", ".svg": "svg"}
_STYLES: Final = {
    "log": {"color": "0.55", "linestyle": ":", "linewidth": 2.2},
    "unchanged": {"color": "tab:blue", "linestyle": "-", "linewidth": 1.6},
    "changed": {"color": "tab:orange", "linestyle": "--", "linewidth": 1.6},
}
"""Told apart without colour, too."""
_WIDE_INCHES: Final = 11.0
_HIGH_INCHES: Final = 7.5
_LEAST_WAIT_SECONDS: Final = 0.1
"""A shorter one stands at the edge: the axis is logarithmic."""
_UNITS: Final = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def form_of(file: Path) -> str:
    """Raises Problem (usage) for a file that is none of a picture, or cannot be there."""
    form = FORMS.get(file.suffix.lower())
    if form is None:
        raise usage(f"--plot: {file} must end with .png or .svg", todo="such as --plot outcome.svg")
    if not file.parent.is_dir():
        raise usage(f"--plot: there is no folder {file.parent}")
    return form


def draw(file: Path, shown: Sequence[Shown], title: str) -> None:
    """Writes the picture, whole or not at all. Raises Problem."""
    data = picture(shown, title, form_of(file))
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            draft.write_bytes(data)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise usage(f"--plot: {file} cannot be written: {error.strerror}") from error


def picture(shown: Sequence[Shown], title: str, form: str) -> bytes:
    """The same outcomes give the same bytes. Raises Problem where matplotlib is missing."""
    figure = new_figure(_WIDE_INCHES, _HIGH_INCHES)
    axes = figure.subplots(2, 2)
    _waits(axes[0][0], shown)
    _over_time(axes[0][1], shown, "GPUs in use (%)", lambda sample: 100 * sample.gpu_use)
    _over_time(axes[1][0], shown, "workloads that wait", lambda sample: float(sample.waiting))
    _over_time(axes[1][1], shown, "share error (% of the GPUs)", _share_error)
    axes[0][0].legend(loc="lower right", frameon=False)
    figure.suptitle(title, x=0.01, ha="left")
    out = io.BytesIO()
    import matplotlib as mpl

    settings: Any = mpl.rcParams
    settings.update({"svg.hashsalt": "muster", "svg.fonttype": "none"})
    figure.savefig(out, format=form, metadata={"Date": None} if form == "svg" else {"Software": None})
    return out.getvalue()


def _waits(axes: Any, shown: Sequence[Shown]) -> None:
    """Which part of the workloads had started after how long."""
    for each in shown:
        all_, started = each.figures.waits, each.figures.waits_of(lambda wait: wait.how == "started")
        if not all_:
            continue
        times = [max(seconds, _LEAST_WAIT_SECONDS) for seconds in started]
        parts = [100 * (number + 1) / len(all_) for number in range(len(times))]
        if times:
            axes.step([_LEAST_WAIT_SECONDS, *times], [0.0, *parts], where="post", label=each.key, **_STYLES[each.key])
    axes.set_xscale("log")
    axes.set_ylim(0, 102)
    axes.set_xlabel("waiting time (seconds)")
    axes.set_ylabel("workloads that had started (%)")
    _plain(axes)


def _share_error(sample: Sample) -> float | None:
    return None if sample.share_error is None else 100 * sample.share_error


def _over_time(axes: Any, shown: Sequence[Shown], label: str, value: Callable[[Sample], float | None]) -> None:
    scale, unit = _unit(max((each.figures.seconds for each in shown), default=1.0))
    for each in shown:
        points = [
            (sample.seconds / scale, found) for sample in each.figures.samples if (found := value(sample)) is not None
        ]
        if points:
            axes.step(*zip(*points, strict=True), where="post", label=each.key, **_STYLES[each.key])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(unit)
    axes.set_ylabel(label)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, alpha=0.3)


def _unit(seconds: float) -> tuple[float, str]:
    return next(((scale, name) for scale, name in _UNITS if seconds >= 2 * scale), _UNITS[-1])
