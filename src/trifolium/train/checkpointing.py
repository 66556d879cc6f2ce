"""Training checkpoints: one safetensors file with parameters, optimiser moments and progress, replaced atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import ConfigError, CorruptFileError, TrainingError
from ..files import replacing


class CheckpointStore(Protocol):
    """Where a run's last checkpoint lies: parameters, optimiser moments and progress (JSON values)."""

    def exists(self) -> bool:
        """Whether there is one to go on from."""
        ...

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
        """Replace it. The last one survives any failure, which is a TrainingError."""
        ...

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Restore it, and return its progress. Raises ConfigError (another recipe's) or CorruptFileError."""
        ...


class FileStore:
    """One safetensors file in the run's folder."""

    NAME = "training.safetensors"

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.NAME

    def exists(self) -> bool:
        """See CheckpointStore."""
        return self.path.exists()

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
        """See CheckpointStore."""
        save_training(self.path, module, optimizer, progress)

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """See CheckpointStore."""
        return load_training(self.path, module, optimizer, "step")


MOMENTS = ("exp_avg", "exp_avg_sq")
_KEY = "trifolium_training"


def training_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters and moments by name, sharing memory with the module and the optimiser."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        tensors[f"parameter.{name}"] = parameter.detach()
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{moment}.{name}": state[moment] for moment in MOMENTS if moment in state}
    return tensors


def save_training(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Write parameters, moments and `progress` (JSON values) to `path`; the file there survives any failure."""
    tensors = training_tensors(module, optimizer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            save_file(tensors, partial, metadata={_KEY: json.dumps(progress)})
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"can't write the checkpoint {path}: {error}; the previous one, if any, is intact"
        ) from None


def load_training(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, step_key: str) -> dict[str, Any]:
    """Restore what save_training wrote, and return its progress; `progress[step_key]` is the optimiser's step count."""
    try:
        with safe_open(path, framework="pt") as file:
            progress: dict[str, Any] = json.loads((file.metadata() or {})[_KEY])
            names = set(file.keys())
            wanted = {f"parameter.{name}": p for name, p in module.named_parameters()}
            if not wanted.keys() <= names:
                raise ConfigError(
                    f"{path} is a checkpoint of another recipe: it lacks {sorted(wanted.keys() - names)[:5]}"
                )
            for name, parameter in module.named_parameters():
                value = file.get_tensor(f"parameter.{name}")
                if value.shape != parameter.shape:
                    raise ConfigError(
                        f"{path} is a checkpoint of another recipe: {name} has shape {tuple(value.shape)}"
                    )
                with torch.no_grad():
                    parameter.copy_(value)
                if f"exp_avg.{name}" in names:
                    state = {moment: file.get_tensor(f"{moment}.{name}") for moment in MOMENTS}
                    optimizer.state[parameter] = {**state, "step": torch.tensor(float(progress[step_key]))}
    except (SafetensorError, KeyError, ValueError) as error:
        raise CorruptFileError(f"{path} is not a training checkpoint: {error}") from None
    return progress
