"""Training on several processes: FSDP2 shards the model, distributed checkpoints hold it, torchrun starts everything.

    torchrun --nproc-per-node 8 -m trifolium train full.toml

Parameters, gradients and optimiser moments of every layer are split over the processes (torch's fully_shard); a layer
is gathered while it runs. Checkpoints are safetensors files of shards, written and read in parallel, and can be read by
any other number of processes. Nothing is pickled.

Expert parallelism is not here yet. It would fit between router and experts: `ops.experts` already groups rows by
expert, so a process that owns some of the experts would receive their groups by an all-to-all, and `fully_shard` would
leave `Experts.gate_up` and `Experts.down` to a mesh dimension of their own.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from ..errors import CorruptFileError, TrainingError
from ..model.transformer import Transformer
from .checkpointing import MOMENTS, FileStore, training_tensors
from .world import World

_PROGRESS = "progress.json"


def shard(model: Transformer, world: World) -> None:
    """Split every parameter over the world's processes, layer by layer. All of them must hold the same weights."""
    if world.size == 1:
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (world.size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
        for method in ("commit", "preview"):
            register_fsdp_forward_method(layer, method)
    # An evaluation runs forward only; without this it would leave the root's own parameters gathered.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for method in ("commit_stream", "preview_stream", "vocabulary_logits"):
        register_fsdp_forward_method(model, method)


class LeadersFile(FileStore):
    """A file of what every process holds as a whole: the leader writes it, all of them read it."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self.world = world

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
        """See CheckpointStore; all processes call it together."""
        if self.world.leads:
            super().save(module, optimizer, progress)
        if self.world.size > 1:
            dist.barrier()


class ShardedStore:
    """Checkpoints as folders checkpoint-STEP of safetensors shards; one that has progress.json is complete."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        self.world = world

    def _newest(self) -> Path | None:
        whole = [path.parent for path in self.folder.glob(f"checkpoint-*/{_PROGRESS}")]
        return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def exists(self) -> bool:
        """See CheckpointStore."""
        return self._newest() is not None

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
        """See CheckpointStore; all processes call it together."""
        path = self.folder / f"checkpoint-{progress['step']}"
        if (path / _PROGRESS).exists():
            return
        try:
            if self.world.leads:
                shutil.rmtree(path, ignore_errors=True)  # what a crash left
                path.mkdir(parents=True)
            self._wait()
            writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
            with _alone_is_fine():
                save(training_tensors(module, optimizer), storage_writer=writer)
            if self.world.leads:
                partial = path / (_PROGRESS + ".partial")
                partial.write_text(json.dumps(progress), encoding="utf-8")
                partial.replace(path / _PROGRESS)
                for old in self.folder.glob("checkpoint-*"):
                    if old != path:
                        shutil.rmtree(old, ignore_errors=True)
            self._wait()
        except OSError as error:
            raise TrainingError(f"can't write the checkpoint {path}: {error}; the previous one is intact") from None

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """See CheckpointStore; any number of processes may read what any other number wrote."""
        path = self._newest()
        assert path is not None
        try:
            progress: dict[str, Any] = json.loads((path / _PROGRESS).read_text(encoding="utf-8"))
            for group in optimizer.param_groups:
                for p in group["params"]:
                    step = torch.tensor(float(progress["step"]))
                    optimizer.state[p] = {"step": step, **{moment: torch.zeros_like(p) for moment in MOMENTS}}
            with _alone_is_fine():
                load(training_tensors(module, optimizer), storage_reader=HuggingFaceStorageReader(str(path)))
        except (OSError, ValueError, KeyError, CheckpointException) as error:
            raise CorruptFileError(f"{path} is not a checkpoint of this recipe: {error}") from None
        return progress

    def _wait(self) -> None:
        if self.world.size > 1:
            dist.barrier()


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """torch warns where one process saves without a process group; here that is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torch.distributed")
        yield


def gather(model: Transformer, world: World) -> dict[str, Tensor]:
    """Whole parameters by name, on every process."""
    if world.size == 1:
        return {name: p.detach() for name, p in model.named_parameters()}
    return {name: p.detach().full_tensor() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
