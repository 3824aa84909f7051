"""Bars of hourly use as a picture (PNG). matplotlib draws them, an extra of the installation; it is imported here."""

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.cli.exits import ExitCode, Problem

MOST_BARS: Final = 20
"""Of names; the rest is one bar."""
MOST_COLOURS: Final = 9
"""Of names within one bar; the rest is one more. So many colours of a palette can be told apart."""
MOST_CHARACTERS: Final = 40
"""Of a name."""
OTHERS: Final = "others"
_DPI: Final = 120
_WIDE_INCHES: Final = 9.0
_HIGH_INCHES: Final = 5.0
_BAR_INCHES: Final = 0.35
_MOST_TICKS: Final = 12

type Sums = Mapping[str, float]
"""GPU hours by name, the most first."""


def bars(sums: Sums, *, title: str) -> bytes:
    """One bar for each name."""
    shown = _folded(sums, MOST_BARS)
    figure, axes = _figure(max(_BAR_INCHES * len(shown) + 1.5, 2.5))
    drawn = axes.barh([_cut(name) for name in shown], list(shown.values()), color="tab:blue")
    axes.bar_label(drawn, fmt="{:,.1f}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("GPU hours reserved")
    return _png(figure, axes, title)


def stacks(periods: Sequence[str], sums: Mapping[str, Sums], *, title: str) -> bytes:
    """One bar for each period, of a part for each name.

    Args:
        periods: in order of time, those in which nothing was used included.
        sums: GPU hours by period and name.
    """
    whole: dict[str, float] = defaultdict(float)
    for parts in sums.values():
        for name, amount in parts.items():
            whole[name] += amount
    order = sorted(whole, key=lambda name: (-whole[name], name))
    own = set(order if len(order) <= MOST_COLOURS + 1 else order[:MOST_COLOURS])
    figure, axes = _figure(_HIGH_INCHES)
    bottom = [0.0] * len(periods)
    for name in [name for name in order if name in own] + ([OTHERS] if len(own) < len(order) else []):
        heights = [
            sum(amount for one, amount in sums.get(period, {}).items() if (one if one in own else OTHERS) == name)
            for period in periods
        ]
        axes.bar(range(len(periods)), heights, bottom=bottom, label=_cut(name), width=0.9)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    step = -(-len(periods) // _MOST_TICKS)
    axes.set_xticks(range(0, len(periods), step), periods[::step], rotation=30, ha="right")
    axes.set_ylabel("GPU hours reserved")
    if order:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return _png(figure, axes, title)


def _folded(sums: Sums, most: int) -> dict[str, float]:
    order = list(sums)
    if len(order) <= most + 1:
        return dict(sums)
    return {name: sums[name] for name in order[:most]} | {OTHERS: sum(sums[name] for name in order[most:])}


def _cut(name: str) -> str:
    """As a label: a dollar sign would begin a formula, and an underscore keep a name from the legend."""
    shown = name or "unknown"
    shown = shown if len(shown) <= MOST_CHARACTERS else f"{shown[: MOST_CHARACTERS - 1]}…"
    return ("\u200b" if shown.startswith("_") else "") + shown.replace("$", r"\$")


def _figure(high_inches: float) -> tuple[Any, Any]:
    """A figure and its axes."""
    figure = new_figure(_WIDE_INCHES, high_inches)
    return figure, figure.add_subplot()


def new_figure(wide_inches: float, high_inches: float) -> Any:
    """Of matplotlib, which only half tells its types. Raises Problem where it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Problem(
            "a picture needs matplotlib, which is not installed",
            why=(str(error),),
            todo="pip install 'muster[charts]', or take -o csv",
            code=ExitCode.FAILURE,
        ) from error
    return Figure(figsize=(wide_inches, high_inches), dpi=_DPI, layout="constrained")


def _png(figure: Any, axes: Any, title: str) -> bytes:
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
