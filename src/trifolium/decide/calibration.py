"""Calibration: one temperature per question type, fitted on answers that are known, kept beside the model's weights.

`<cache>/decisions/<fingerprint>.json`. A temperature divides log-probabilities before they are normalised: above 1 it
takes confidence away, below 1 it adds some, and which answer is likeliest stays the same (Guo et al. 2017, "On
calibration of modern neural networks", arXiv:1706.04599).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.shelf import cache_folder
from ..drawing import BLUE, GREY, frame
from ..errors import ConfigError, UsageError
from ..files import replacing
from .answers import Answer
from .questions import TYPES, QuestionType

FORMAT = 1
RANGE = (0.05, 20.0)
"""Temperatures that are looked at."""

BINS = 10
FLOOR = 1e-9
"""Probability that counts for an option that was thought impossible."""


@dataclass(frozen=True)
class Labelled:
    """An answer before any temperature, and what is right: a share for each option, summing to 1."""

    answer: Answer
    gold: tuple[float, ...]

    @property
    def right(self) -> bool:
        """Whether the likeliest option is (one of) the best."""
        return self.gold[self.answer.best] == max(self.gold)

    def heated(self, temperature: float) -> Labelled:
        """The same at another temperature."""
        return Labelled(heat(self.answer, temperature), self.gold)


@dataclass(frozen=True)
class Bin:
    """Answers whose likeliest option has a probability from `low` to `high`; on average it is `probability`."""

    low: float
    high: float
    count: int
    probability: float
    accuracy: float


@dataclass(frozen=True)
class Report:
    """How good answers are. `loss`: mean cross-entropy to the gold shares, nats.

    `error`: the gap between probability and accuracy of the likeliest option, averaged over BINS equal bins by count
    (expected calibration error). `sure_loss`: share of all answers that are wrong with at least 0.9.
    """

    count: int
    accuracy: float
    loss: float
    error: float
    sure_loss: float
    bins: tuple[Bin, ...]

    @staticmethod
    def of(data: Sequence[Labelled]) -> Report:
        """Measure; `data` must not be empty."""
        bins = reliability(data)
        count = len(data)
        return Report(
            count,
            sum(one.right for one in data) / count,
            math.fsum(map(cross_entropy, data)) / count,
            sum(bin.count * abs(bin.probability - bin.accuracy) for bin in bins) / count,
            sum(not one.right and one.answer.probability >= 0.9 for one in data) / count,
            bins,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "count": self.count,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "calibration_error": self.error,
            "sure_loss": self.sure_loss,
            "bins": [vars(bin) for bin in self.bins],
        }


def heat(answer: Answer, temperature: float) -> Answer:
    """The answer with every probability to the power of 1 / temperature, normalised."""
    powers = [p ** (1.0 / temperature) for p in answer.probabilities]
    total = math.fsum(powers)
    return Answer(answer.question, tuple(power / total for power in powers))


def cross_entropy(one: Labelled) -> float:
    """-sum gold log p, in nats."""
    pairs = zip(one.gold, one.answer.probabilities, strict=True)
    return -math.fsum(share * math.log(max(p, FLOOR)) for share, p in pairs if share)


def reliability(data: Iterable[Labelled]) -> tuple[Bin, ...]:
    """The bins that hold answers, by the probability of the likeliest option."""
    held: list[list[Labelled]] = [[] for _ in range(BINS)]
    for one in data:
        held[min(BINS - 1, int(one.answer.probability * BINS))].append(one)
    return tuple(
        Bin(
            i / BINS,
            (i + 1) / BINS,
            len(ones),
            math.fsum(one.answer.probability for one in ones) / len(ones),
            sum(one.right for one in ones) / len(ones),
        )
        for i, ones in enumerate(held)
        if ones
    )


def fit(data: Sequence[Labelled]) -> dict[QuestionType, float]:
    """The temperature of least cross-entropy for every question type that there is data of.

    Golden-section search over log T in RANGE: the loss of softmax(l / T) is convex in 1 / T, so it has one valley.
    """
    found: dict[QuestionType, float] = {}
    for kind in TYPES:
        own = [one for one in data if one.answer.question.type == kind]
        if own:
            found[kind] = _valley(own)
    return found


def _valley(data: Sequence[Labelled]) -> float:
    def loss(log_temperature: float) -> float:
        return math.fsum(cross_entropy(one.heated(math.exp(log_temperature))) for one in data)

    low, high = map(math.log, RANGE)
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-3:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = loss(right)
    return round(math.exp((low + high) / 2.0), 4)


@dataclass(frozen=True)
class CalibrationFile:
    """Where a model's temperatures are kept."""

    path: Path

    @classmethod
    def of(cls, fingerprint: str, cache: Path | None = None) -> CalibrationFile:
        """The file of the model with this fingerprint, in the user's cache."""
        return cls((cache or cache_folder(os.environ)) / "decisions" / f"{fingerprint[:16]}.json")

    def read(self) -> dict[QuestionType, float]:
        """The temperatures; none where the model was never calibrated. Raises ConfigError for a file that isn't one."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} can't be read: {error}") from None
        try:
            return _checked(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.path} is no calibration ({error}): make it anew with `trifolium calibrate`, or remove it"
            ) from None

    def write(self, temperatures: Mapping[QuestionType, float]) -> None:
        """Keep them, in place of what was there. Raises UsageError where the folder can't be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as partial:
                partial.write_text(json.dumps({"format": FORMAT, "temperatures": dict(temperatures)}, indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"the calibration can't be written to {self.path}: {error}") from None


def _checked(given: Any) -> dict[QuestionType, float]:
    """The temperatures of a file's content. Raises ValueError."""
    if not isinstance(given, dict) or given.get("format") != FORMAT or not isinstance(given.get("temperatures"), dict):
        raise ValueError(f"format {FORMAT} is expected")
    temperatures: dict[QuestionType, float] = {}
    for kind, value in given["temperatures"].items():
        if kind not in TYPES or not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"a temperature for one of {', '.join(TYPES)} is expected, not {kind}: {value!r}")
        if not RANGE[0] <= value <= RANGE[1]:
            raise ValueError(f"the temperature {value} is outside {RANGE[0]} to {RANGE[1]}")
        temperatures[kind] = float(value)
    return temperatures


def plot(reports: Mapping[str, Report], picture: Path) -> None:
    """Draw reliability: how often answers are right, by how likely they were thought to be.

    Raises UsageError without matplotlib.
    """
    with frame(picture, size=(4.6, 4.4), grid=True) as (axis,):
        axis.plot([0, 1], [0, 1], color=GREY, lw=0.8)
        for (name, report), colour in zip(reports.items(), (GREY, BLUE, "#2f9e6e", "#c2703d"), strict=False):
            x, y = [bin.probability for bin in report.bins], [bin.accuracy for bin in report.bins]
            axis.plot(x, y, "o-", ms=4, color=colour, label=f"{name}: error {report.error:.3f}")
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the likeliest answer", ylabel="share that is right")
