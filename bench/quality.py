"""How near each dtype's numbers are to float32's, on held-out text: the tables of docs/numbers.md.

    python bench/quality.py [--model NAME] [--conversations FILE] [--limit N] [--max-tokens N] [--out FOLDER]

Without a file the text is float32's own greedy answers to the built-in held-out prompts; with one (JSONL, or a
training corpus as .jsonl.gz, of which only held-out prompts count) its answers are read. Writes quality-NAME.json and
.md, and, with --docs, the table into docs/numbers.md between the marks there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import torch

import trifolium
from trifolium.dtypes import DType, Machine
from trifolium.evaluate.fidelity import compare, dtypes_to_compare, markdown, read_conversations

DOCS = Path(__file__).parents[1] / "docs" / "numbers.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", help="only these, with commas; float32 is always there")
    parser.add_argument("--conversations", type=Path, help="JSONL or .jsonl.gz with `messages`")
    parser.add_argument("--limit", type=int, default=32, help="conversations")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/numbers.md")
    options = parser.parse_args()

    def load(dtype: DType) -> trifolium.LM:
        return trifolium.load(options.model, dtype=dtype)

    conversations = read_conversations(options.conversations, options.limit)
    dtypes = dtypes_to_compare(options.dtypes)
    found = compare(load, dtypes, conversations, max_tokens=options.max_tokens, progress=lambda: print(".", flush=True))
    machine = Machine.here()
    text = "the model's answers in a file" if options.conversations else "float32's own answers to built-in prompts"
    about: dict[str, Any] = {
        "model": options.model, "conversations": len(conversations), "text": text, "max_tokens": options.max_tokens,
        "torch": torch.__version__, "cores": os.cpu_count(), "machine": machine.__dict__,
    }  # fmt: skip
    kernels = "native" if machine.native else "torch's"
    table = (
        f"{options.model}: {len(conversations)} conversations, {text}, at most {options.max_tokens} tokens each; "
        f"{kernels} kernels, {'with' if machine.dot8 else 'without'} 32-bit int8 dot products, "
        f"torch {torch.__version__}.\n\n{markdown(found)}"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    report = {"about": about, "dtypes": [each.as_dict() for each in found]}
    (options.out / f"quality-{options.model}.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.out / f"quality-{options.model}.md").write_text(table)
    if options.docs:
        begin, end = (f"<!-- quality {options.model}: {mark} -->" for mark in ("begin", "end"))
        old = DOCS.read_text()
        new = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}{end}", old, flags=re.DOTALL)
        DOCS.write_text(new)
    print(table)


if __name__ == "__main__":
    main()
