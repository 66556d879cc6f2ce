"""Single layers at Qwen3.6-35B-A3B's true shapes, with random weights: ours against transformers' modules.

    python bench/layers_35b.py [--dtype float32 bfloat16] [--rows 32] [--out bench/out]

One layer at a time, both in the same run, taking turns; medians. The mixture's router has a stated skew: expert e is
preferred by a logit of -SKEW log(e + 1), which makes its popularity about Zipf-like; random logits alone would be near
uniform, which no trained router is. Bandwidth is bytes of the distinct experts that were read (and of the shared one)
over time, beside what this machine reads at most in the same run. Writes layers.json and layers.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet, Qwen3_5MoeSparseMoeBlock

from trifolium.checkpoint.hf_config import config_from_hf
from trifolium.config import AdapterConfig, ModelConfig
from trifolium.model import MASK, RequestRows, RequestState, Rows
from trifolium.model.adapter import LayerDeltas
from trifolium.model.deltanet import DeltaNet
from trifolium.model.experts import Experts
from trifolium.ops import native

SKEW = 0.7
REPEATS = 5
CORESETS = (16, 32, 64)
CONSOLE = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    theirs = Qwen3_5MoeTextConfig(num_hidden_layers=1, layer_types=["linear_attention"])
    theirs._attn_implementation = "sdpa"
    theirs._experts_implementation = "eager"
    ours = config_from_hf({**theirs.to_dict(), "model_type": "qwen3_5_moe_text"}, "geometry")
    report: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "native": native.native().why,
        "read_bandwidth": bandwidth(),
        "rows": options.rows,
        "skew": SKEW,
    }
    with torch.inference_mode():
        for name in options.dtype:
            dtype = getattr(torch, name)
            CONSOLE.print(f"delta-net, {name}")
            report[f"delta_net_{name}"] = delta_net(ours, theirs, dtype, options.rows)
            CONSOLE.print(f"experts, {name}")
            report[f"experts_{name}"] = experts(ours, theirs, dtype, options.rows, report["read_bandwidth"])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "layers.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.out / "layers.md").write_text(markdown(report))
    print(markdown(report))


def bandwidth() -> float:
    """Bytes a second that all threads together read of an array far larger than the caches."""
    data = torch.ones(1 << 28)
    best = min(timed(data.sum) for _ in range(8))
    return data.nbytes / best


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def compare(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(REPEATS + 1):
        for name, run in runs.items():
            seconds = timed(run)
            if i:  # the first round warms up
                times[name].append(seconds)
    return {name: 1000 * statistics.median(values) for name, values in times.items()}


def random_weights(module: nn.Module) -> None:
    for p in module.parameters():
        if p.dim() > 1:
            p.data.normal_(std=p.shape[-1] ** -0.5)
        else:
            p.data.uniform_(0.1, 1.0)


def layer_pass(config: ModelConfig, commit: int, blocks: Sequence[int]) -> tuple[Rows, RequestState]:
    """The rows of one request: `commit` tokens, and a block of masks for each size, after the last of them."""
    single = config.model_copy(update={"num_layers": 1, "mixers": ("delta_net",), "feed_forwards": ("experts",)})
    state = RequestState(single)
    requests = [RequestRows(state, [1] * commit, [(commit, [MASK] * size) for size in blocks])]
    return Rows.build(requests, tile=native.native().library is None), state


def deltas(config: ModelConfig, top_p: float = 1.0) -> LayerDeltas:
    adapter = AdapterConfig(
        base_name="-", base_fingerprint="-", rank=0, coreset_top_p=top_p, vocab_size=8, num_layers=1,
        hidden_size=config.hidden_size,
    )  # fmt: skip
    single = config.model_copy(update={"num_layers": 1, "mixers": ("delta_net",), "feed_forwards": ("experts",)})
    return LayerDeltas(adapter, single, 0)


def delta_net(config: ModelConfig, theirs: Qwen3_5MoeTextConfig, dtype: torch.dtype, n: int) -> dict[str, Any]:
    """n rows committed, and n previewed, against n rows of theirs; and the part of it that isn't products."""
    reference = Qwen3_5MoeGatedDeltaNet(theirs, 0).to(dtype).eval()
    random_weights(reference)
    mixer = DeltaNet(config)
    mixer.proj.weight.data = torch.cat(
        [
            reference.in_proj_qkv.weight,
            reference.in_proj_z.weight,
            reference.in_proj_b.weight,
            reference.in_proj_a.weight,
        ]
    ).float()
    mixer.out.weight.data = reference.out_proj.weight.float()
    mixer.conv.data = reference.conv1d.weight[:, 0].float()
    mixer.decay_log.data, mixer.decay_bias.data = reference.A_log.float(), reference.dt_bias.float()
    mixer.gate_norm.weight.data = reference.norm.weight.float()
    for linear in (mixer.proj, mixer.out):
        linear.pack(dtype, keep=False)
    x = torch.randn(n, config.hidden_size)
    commit, _ = layer_pass(config, n, ())
    preview, _ = layer_pass(config, 0, (n,))
    extra = deltas(config)
    if dtype == torch.float32:
        error = (mixer.rows(x, commit, 0, None) - reference(x[None])[0]).abs().max()
        assert error < 1e-3, f"ours and theirs differ by {error}"
    return compare({
        "theirs": lambda: reference(x[None].to(dtype)),
        "commit": lambda: mixer.rows(x, commit, 0, None),
        "preview": lambda: mixer.rows(x, preview, 0, extra),
        "our_products": lambda: our_products(mixer, x, commit),
        "their_products": lambda: their_products(reference, x.to(dtype)),
    })  # fmt: skip


def our_products(mixer: DeltaNet, x: Tensor, rows: Rows) -> Tensor:
    y = mixer.proj.rows(x, rows.num_commit, rows.tile, None)
    return mixer.out.rows(y[:, : mixer.sizes.value_size].contiguous(), rows.num_commit, rows.tile, None)


def their_products(module: Any, x: Tensor) -> Tensor:
    for product in (module.in_proj_qkv, module.in_proj_b, module.in_proj_a):
        product(x)
    y: Tensor = module.out_proj(module.in_proj_z(x))
    return y


def experts(
    config: ModelConfig, theirs: Qwen3_5MoeTextConfig, dtype: torch.dtype, n: int, most: float
) -> dict[str, Any]:
    """The whole block with n commit rows, against theirs; then int8, and coresets of n preview rows."""
    reference = Qwen3_5MoeSparseMoeBlock(theirs).to(dtype).eval()
    random_weights(reference)
    x = torch.randn(n, config.hidden_size)
    skew = -SKEW * torch.log(torch.arange(theirs.num_experts) + 1.0)
    x[:, 0] = 8.0  # a constant feature carries the skew, as a bias would
    reference.gate.weight.data[:, 0] = (skew / 8.0).to(dtype)
    block = Experts(config)
    block.router.weight.data = reference.gate.weight.float()
    shared = reference.shared_expert
    assert block.shared is not None
    assert block.shared_gate is not None
    block.shared.gate_up.weight.data = torch.cat([shared.gate_proj.weight, shared.up_proj.weight]).float()
    block.shared.down.weight.data = shared.down_proj.weight.float()
    block.shared_gate.weight.data = reference.shared_expert_gate.weight.float()
    block.gate_up.data, block.down.data = reference.experts.gate_up_proj.data, reference.experts.down_proj.data
    linears = (block.router, block.shared.gate_up, block.shared.down, block.shared_gate)
    for linear in linears:
        linear.pack(dtype, keep=True)
    block.pack(dtype, keep=True)
    commit, _ = layer_pass(config, n, ())
    preview, _ = layer_pass(config, 0, (n,))
    if dtype == torch.float32:
        error = (block.rows(x, commit, None) - reference(x[None])[0]).abs().max()
        assert error < 1e-3, f"ours and theirs differ by {error}"
    found: dict[str, Any] = {}
    found |= compare({"theirs": lambda: reference(x[None].to(dtype)), "ours": lambda: block.rows(x, commit, None)})
    size = 3 * theirs.hidden_size * theirs.moe_intermediate_size * (4 if dtype == torch.float32 else 2)

    def read(rows: Rows) -> int:
        return rows.experts_read[-1]

    found["distinct"] = read(commit)
    found["bandwidth"] = (found["distinct"] + 1) * size / (found["ours"] / 1000)
    found["share_of_bandwidth"] = found["bandwidth"] / most
    found["coresets"] = {}
    probabilities = block.router.rows(x, 0, None, None).softmax(-1).mean(0).sort(descending=True).values
    for count in CORESETS:
        extra = deltas(config, float(probabilities[:count].sum()) - 1e-6)
        times = compare({"ours": lambda extra=extra: block.rows(x, preview, extra)})
        found["coresets"][count] = {"ms": times["ours"], "distinct": read(preview)}
    for linear in linears:
        linear.pack(torch.int8, keep=True)
    block.gate_up.data, block.down.data = block.gate_up.data.float(), block.down.data.float()
    block.pack(torch.int8, keep=False)
    found["int8_ms"] = compare({"ours": lambda: block.rows(x, commit, None)})["ours"]
    return found


def markdown(report: dict[str, Any]) -> str:
    """The tables of the docs."""
    n = report["rows"]
    lines = [
        f"{report['threads']} threads, {report['read_bandwidth'] / 1e9:.1f} GB/s read at most, native kernels: "
        f"{report['native']}.",
        "",
        f"| delta-net mixer, {n} rows | transformers, ms | commit, ms | preview, ms | commit, times faster | "
        "without products: theirs, ms | ours, ms | times faster |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("float32", "bfloat16"):
        if t := report.get(f"delta_net_{name}"):
            rest, own = t["theirs"] - t["their_products"], t["commit"] - t["our_products"]
            lines.append(
                f"| {name} | {t['theirs']:.1f} | {t['commit']:.1f} | {t['preview']:.1f} | "
                f"{t['theirs'] / t['commit']:.1f} | {rest:.1f} | {own:.1f} | {rest / max(own, 1e-3):.1f} |"
            )
    lines += [
        "",
        f"| experts, {n} rows, router skew {report['skew']} | transformers, ms | ours, ms | times faster | "
        "distinct experts | GB/s | share of bandwidth | int8, ms | "
        + " | ".join(f"coreset {count}, ms" for count in CORESETS)
        + " |",
        "| --- " * (8 + len(CORESETS)) + "|",
    ]
    for name in ("float32", "bfloat16"):
        if t := report.get(f"experts_{name}"):
            coresets = " | ".join(f"{t['coresets'][count]['ms']:.1f}" for count in CORESETS)
            lines.append(
                f"| {name} | {t['theirs']:.1f} | {t['ours']:.1f} | {t['theirs'] / t['ours']:.1f} | {t['distinct']} | "
                f"{t['bandwidth'] / 1e9:.1f} | {t['share_of_bandwidth']:.0%} | {t['int8_ms']:.1f} | {coresets} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
