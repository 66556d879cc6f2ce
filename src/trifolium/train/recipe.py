"""Training recipes: everything that decides what comes out of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import Field

from ..config import Frozen
from ..errors import ConfigError, NotFoundError
from .noise import NoiseConfig


class Schedule(Frozen):
    """What every kind of training shares.

    steps: optimiser steps in all. tokens_per_batch: padded clean tokens of a step. learning rate: linear warm-up,
    constant, then linear decay to a tenth over the last `decay` part of the steps. rates: {end of a parameter's name:
    multiple of the learning rate}. clip: largest gradient norm.
    """

    seed: int = Field(0, ge=0)
    steps: int = Field(1000, gt=0)
    tokens_per_batch: int = Field(2048, gt=0)
    learning_rate: float = Field(1.2e-3, gt=0)
    warmup: int = Field(20, ge=0)
    decay: float = Field(0.3, ge=0, le=1)
    rates: dict[str, Annotated[float, Field(ge=0)]] = Field({})
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)
    save_minutes: float = Field(5.0, gt=0)
    evaluate_every: int = Field(50, gt=0)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a recipe file; raises NotFoundError, or ConfigError that names the fault."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFoundError(f"recipe {path} does not exist") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"recipe {path}: {error}") from None
        return cls.parse(values, f"recipe {path}")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of a 0-based step."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        left = (self.steps - step) / max(1.0, self.steps * self.decay)
        return self.learning_rate * (0.1 + 0.9 * min(1.0, left))

    def rate_of(self, name: str) -> float:
        """The multiple of the learning rate that a parameter trains at."""
        return next((rate for end, rate in self.rates.items() if name.endswith(end)), 1.0)


class Pretrain(Schedule):
    """Autoregressive training from random weights.

    prompt_weight: weight of a prompt's token beside an answer's in the loss. balance: weight of the loss that spreads
    rows over experts. held_out: how many held-out conversations an evaluation reads.
    """

    prompt_weight: float = Field(0.3, ge=0)
    balance: float = Field(0.01, ge=0)
    held_out: int = Field(64, gt=0)


class Diffuse(Pretrain):
    """Full fine-tuning of an AR model to block diffusion: every weight trains, on a clean and a noisy stream.

    noise, rows_per_token: as in Recipe. preview_weight: weight of the noisy rows' loss. ar_weight: weight of the clean
    stream's own cross-entropy, and teacher_weight of its divergence from the AR model that training started from; both
    keep the commit path what it was. frozen: ends of parameter names that stay as they are.
    """

    noise: NoiseConfig = NoiseConfig()
    rows_per_token: float = Field(1.0, gt=0)
    preview_weight: float = Field(1.0, ge=0)
    ar_weight: float = Field(0.5, ge=0)
    teacher_weight: float = Field(0.0, ge=0)
    frozen: tuple[str, ...] = ()


class Products(Frozen):
    """products: how matrix products of the layers are computed; auto takes bfloat16 where the CPU multiplies it in
    hardware, else float32. What is trained is float32.
    """

    products: Literal["auto", "float32", "bfloat16"] = "auto"

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype that `products` stands for on this machine."""
        if self.products == "auto":
            fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
            return torch.bfloat16 if fast else torch.float32
        return torch.bfloat16 if self.products == "bfloat16" else torch.float32


class Recipe(Schedule, Products):
    """A recipe file (TOML) of an adapter. Paths are relative to the recipe's folder.

    skills: a file that is merged into the base's weights, "none", or "auto": those that the shelf gives the base.
    steps: optimiser steps in all. tokens_per_batch: padded clean tokens of a step. views: noisy copies of a step's
    blocks, each of `rows_per_token` noisy rows a clean position; the clean stream runs once for all of them.
    learning rate: linear warm-up, constant, then linear decay to a tenth over the last `decay` part of the steps.
    depth_decay: weight of row j in a block is depth_decay^j. plain_weight: weight of the loss of the rows' own
    proposals beside the chain's. shortlist, negatives: see loss.Shortlist. products: how matrix products of the layers
    are computed; auto takes bfloat16 where the CPU multiplies it in hardware, else float32. Master weights are float32.
    """

    base: str = "smollm2-135m"
    skills: str = "auto"
    data: tuple[str, ...] = Field(min_length=1)
    out: str = "runs/adapter"
    max_length: int = Field(256, gt=8)

    rank: int = Field(48, gt=0)
    alpha: float = Field(48.0, gt=0)
    chain_size: int = Field(1024, ge=0)
    max_block: int = Field(32, gt=0)
    block_size: int = Field(4, gt=0)
    noise: NoiseConfig = NoiseConfig()

    views: int = Field(2, gt=0)
    rows_per_token: float = Field(1.0, gt=0)
    depth_decay: float = Field(0.8, gt=0, le=1)
    plain_weight: float = Field(0.5, ge=0)
    shortlist: int = Field(8192, gt=0)
    negatives: int = Field(1024, ge=0)

    def skills_path(self, folder: Path) -> Path | Literal["auto"] | None:
        """What `open_checkpoint` takes for `skills`, by the recipe's folder."""
        if self.skills == "auto":
            return "auto"
        return None if self.skills == "none" else folder / self.skills


class DataShare(Frozen):
    """One file of conversations, and its share of the padded tokens and of the loss.

    teacher: learn the plain base's own distributions on the answers of this file, not their tokens: what it is good at
    stays as it was. It costs a pass of the plain base over this share.
    """

    file: str
    share: float = Field(gt=0)
    teacher: bool = False


class Skills(Schedule, Products):
    """A recipe file (TOML) of skills: low-rank deltas of a base's own weights; `kind = "skills"`. Paths are relative.

    data: files of whole conversations with their shares ([[data]] tables: file, share, teacher; see DataShare). All
    assistant turns are learned. max_length: longer conversations are left out. rank, alpha: of each delta. weights:
    ends of the names of the layers' products that get one; all of them where it is empty. Embeddings and norms never
    train.
    tokens_per_batch: padded tokens of a step, in `parts` batches one after another, each of one length and one file.
    held_out: how many held-out conversations of each skill an evaluation reads.
    """

    kind: Literal["skills"]
    base: str = "smollm2-135m"
    data: tuple[DataShare, ...] = Field(min_length=1)
    out: str = "runs/skills"
    max_length: int = Field(1024, gt=8)
    rank: int = Field(32, gt=0)
    alpha: float = Field(32.0, gt=0)
    weights: tuple[str, ...] = ()
    parts: int = Field(4, gt=0)
    held_out: int = Field(16, gt=0)
