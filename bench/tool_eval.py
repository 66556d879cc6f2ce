"""`tool-eval-bench run --short` against our own server: fifteen scenarios of tool calls over HTTP.

    python bench/tool_eval.py [--model smollm2-135m ...]

Nothing is installed: where the bench is missing, the message names the package. Writes bench/out/tool_eval_bench.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from served import served

PACKAGE = "tool-eval-bench==3.0.0"
OUT = Path(__file__).parent / "out" / "tool_eval_bench.json"


def score(model: str, tool: str) -> dict[str, Any]:
    """Points of one model."""
    with served(model) as url, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [tool, "--base-url", f"{url}/v1", "--model", model, "--short", "--no-live", "--temperature", "0"]
        done = subprocess.run(
            [*command, "--json-file", str(report)], cwd=folder, capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise SystemExit(f"the bench failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        scores = json.loads(report.read_text())["scores"]
    kinds = {one["label"]: f"{one['earned']}/{one['max']}" for one in scores["category_scores"]}
    return {"model": model, "points": scores["total_points"], "most": scores["max_points"], "categories": kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["smollm2-135m"])
    options = parser.parse_args()
    tool = shutil.which("tool-eval-bench", path=str(Path(sys.executable).parent)) or shutil.which("tool-eval-bench")
    if tool is None:
        raise SystemExit(f"this needs a bench that is not installed: pip install {PACKAGE}")
    runs = [score(model, tool) for model in options.model]
    found = {"version": importlib.metadata.version("tool-eval-bench"), "runs": runs}
    print(json.dumps(found, indent=2))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
