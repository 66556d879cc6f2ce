"""`trifolium calibrate`: temperatures for typed answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from . import options as o
from .decide import read_file

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples: trifolium calibrate known.jsonl  |  trifolium calibrate known.jsonl --plot reliability.png"
)
def calibrate(
    data: Annotated[str, typer.Argument(metavar="DATA.jsonl", help="Questions with answers that are known.")],
    model: o.Model = o.DEFAULT,
    skills: o.Skills = "auto",
    dtype: o.DType = "auto",
    plot: Annotated[Path | None, typer.Option(help="Draw a reliability plot to this file.", metavar="PATH")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only: keep no temperatures.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Fit one temperature per question type on answers that are known, and keep them for this model.

    Each line of DATA is a request as for `trifolium decide`, and under "gold" each question's right answer: a value,
    or {value: probability}.
    """
    from ..decide import labelled
    from ..decide.calibration import CalibrationFile, Report, fit
    from ..decide.calibration import plot as draw

    lines = labelled.read(read_file(data))
    lm = o.load_model(model, "none", dtype, skills=skills)
    if lm.fingerprint is None:
        raise UsageError("this model has no fingerprint to keep a calibration under")
    known = []
    for i, line in enumerate(lines, 1):
        known += line.label(lm.answer(line.inquiry, {}))
        if sys.stderr.isatty() and i % 10 == 0:
            o.note(f"{i} of {len(lines)} lines answered")
    temperatures = fit(known)
    heated = [one.heated(temperatures[one.answer.question.type]) for one in known]
    reports = {"before": Report.of(known), "after": Report.of(heated)}
    if plot is not None:
        draw(reports, plot)
    file = CalibrationFile.of(lm.fingerprint)
    if not dry_run:
        file.write(temperatures)
    if as_json:
        print(
            json.dumps({"temperatures": temperatures, **{name: report.as_dict() for name, report in reports.items()}})
        )
        return
    for name, report in reports.items():
        print(
            f"{name:7} {report.count} answers, accuracy {report.accuracy:.3f}, cross-entropy {report.loss:.3f}, "
            f"calibration error {report.error:.3f}, sure losses {report.sure_loss:.3f}"
        )
    print("temperatures: " + ", ".join(f"{kind} {value:g}" for kind, value in temperatures.items()))
    if not dry_run:
        print(f"kept in {file.path}")
