"""How a figure is told: value, goal, baseline of the same run, ratio."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

OUT = Path("out")


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False
    """Whether the goal is an upper bound."""
    baseline: float | None = None
    """The bare way to do the same, measured in the same run, in the same unit."""
    goal_ratio: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.baseline else None

    @property
    def met(self) -> bool:
        reached = self.goal is None or (self.value <= self.goal if self.at_most else self.value >= self.goal)
        return reached and (self.goal_ratio is None or self.ratio is None or self.ratio >= self.goal_ratio)

    def __str__(self) -> str:
        text = f"{self.name:<58} {_number(self.value):>10} {self.unit}"
        if self.goal is not None:
            text += f"  (goal {'<=' if self.at_most else '>='} {_number(self.goal)})"
        if self.ratio is not None:
            wanted = f", goal >= {self.goal_ratio:.0%}" if self.goal_ratio else ""
            text += f"  baseline {_number(self.baseline or 0)} -> {self.ratio:.0%}{wanted}"
        return text + ("" if self.met else "   MISSED")


@dataclass
class Report:
    """The figures of a run, printed as they come and kept in out/bench.json."""

    figures: list[Figure] = field(default_factory=list[Figure])

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        print(figure, flush=True)

    def keep(self) -> None:
        OUT.mkdir(exist_ok=True)
        kept = [asdict(figure) | {"ratio": figure.ratio, "met": figure.met} for figure in self.figures]
        (OUT / "bench.json").write_text(json.dumps(kept, indent=1) + "\n")


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
