"""Weights from a GGUF file: plain and quantised types, dequantised through the `gguf` package a few rows at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..config import ModelConfig
from ..errors import UnsupportedModelError
from .gguf_config import ROPE_FACTORS, config_from_gguf
from .gguf_header import GgufTensor, read_header
from .names import Shape, Source

# Elements dequantised at once: 4 MiB of float32, so that a large matrix never exists twice.
_CHUNK = 1 << 20
_FLOATS = {GGMLQuantizationType.F16: torch.float16, GGMLQuantizationType.BF16: torch.bfloat16}


class GgufReader:
    """One GGUF file. Attributes: `files`, `config`, `metadata`, `shapes` (their names -> torch-order shapes).

    Raises NotFoundError, CorruptFileError and UnsupportedModelError when it is opened, never half-way through.
    """

    def __init__(self, path: Path) -> None:
        self._header = header = read_header(path)
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self.metadata: dict[str, Any] = header.metadata
        self._tensors = header.tensors
        self.shapes: dict[str, Shape] = {name: tensor.shape for name, tensor in header.tensors.items()}
        for kind in {tensor.kind for tensor in header.tensors.values()}:
            _check_kind(kind, path)
        factors = self.array(ROPE_FACTORS) if ROPE_FACTORS in self.shapes else None
        self.config: ModelConfig = config_from_gguf(self.metadata, self.shapes, factors, str(path))

    @property
    def four_bit(self) -> bool:
        """Whether every matrix of the layers is stored in Q4_1, whose values our int4 keeps exactly."""
        kinds = {t.kind for name, t in self._tensors.items() if name.startswith("blk.") and len(t.shape) > 1}
        return kinds == {GGMLQuantizationType.Q4_1}

    @property
    def ignored(self) -> frozenset[str]:
        """Tensors that the name table doesn't list, and that have been used already."""
        return frozenset({ROPE_FACTORS})

    def dtype(self, name: str) -> torch.dtype:
        """What a tensor is stored in; float32 where it is quantised."""
        return _FLOATS.get(self._tensors[name].kind, torch.float32)

    def plain_metadata(self) -> dict[str, Any]:
        """The metadata as plain Python values, which the tokenizer is made from."""
        return self._header.plain_metadata()

    def read(self, source: Source, out: torch.Tensor) -> None:
        """Dequantise `source` into `out` ([rows, columns] or [n], any float dtype), in HF's row order.

        llama files hold the rows of q and k with the two halves of each head interleaved (pairs 2i, 2i+1), since
        ggml rotates neighbours; HF, and we, rotate (i, i + d/2). Other architectures keep HF's order.
        """
        tensor = self._tensors[source.name]
        if source.heads and self.config.family == "llama":
            target = torch.empty_like(out)
            self._fill(tensor, target)
            half = source.shape[0] // source.heads // 2
            pairs = target.view(source.heads, half, 2, -1).transpose(1, 2)
            out.copy_(pairs.reshape(out.shape))
        else:
            self._fill(tensor, out)

    def array(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A whole tensor as float32 (for small ones)."""
        out = torch.empty(self.shapes[name], dtype=torch.float32)
        self._fill(self._tensors[name], out)
        return np.asarray(out.numpy())

    def _fill(self, tensor: GgufTensor, out: torch.Tensor) -> None:
        columns = tensor.shape[-1]
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        row_bytes = columns // block * block_bytes
        raw = np.memmap(self.path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=(tensor.nbytes,))
        raw_rows = raw.view(np.ndarray).reshape(-1, row_bytes)  # every slice of a memmap would be one, at a price
        out_rows = out.view(-1, columns)
        step = max(1, _CHUNK // columns)
        for start in range(0, len(raw_rows), step):
            values = quants.dequantize(_typed(raw_rows[start : start + step], tensor.kind), tensor.kind)
            # A copy: what stays a view of the read-only map must not become a writable tensor.
            out_rows[start : start + step].copy_(torch.from_numpy(np.array(values, dtype=np.float32)))


def _typed(rows: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """`dequantize` wants plain floats as floats, and everything else as bytes."""
    plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}.get(kind)
    return rows if plain is None else rows.view(plain)


def _check_kind(kind: GGMLQuantizationType, path: Path) -> None:
    """One block of zeros through the package tells whether it can dequantise the type."""
    blank = np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        quants.dequantize(_typed(blank, kind), kind)
    except NotImplementedError:
        raise UnsupportedModelError(
            f"{path} holds {kind.name} tensors, which can't be dequantised; take a file with Q8_0, a K-quant or F16"
        ) from None
