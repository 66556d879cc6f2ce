"""The model: embedding, layers of mixer and feed-forward, norm, head.

`rows` runs one pass of the engine over commit and preview rows of any number of requests. `commit_stream` and
`preview_stream` run whole sequences, the clean and the noisy side of training, on the same modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..errors import TensorMismatchError
from ..ops.formats import INT4, QUANTISED
from ..ops.linear.quantised import Groups, QuantisedWeight
from .adapter import Adapter, LayerDeltas
from .attention import Angles, Attention, AttentionContext
from .blocks import Blocks
from .deltanet import DeltaNet, DeltaNetContext
from .experts import Experts
from .feedforward import FeedForward
from .linear import Linear
from .norm import RMSNorm
from .program import Program
from .rope import Rope
from .rows import ROW_TILE, Rows
from .state import RequestState

Weight = Tensor | QuantisedWeight | Groups
Context = AttentionContext | DeltaNetContext


class DecoderLayer(nn.Module):
    """x + mixer(norm(x)), then x + feed_forward(norm(x)); the config says which of each."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        norm = (config.hidden_size, config.rms_norm_eps, config.norm_offset)
        self.mixer_norm = RMSNorm(*norm)
        self.mixer = DeltaNet(config) if config.mixers[layer] == "delta_net" else Attention(config)
        self.ffn_norm = RMSNorm(*norm)
        self.ffn = (
            Experts(config)
            if config.feed_forwards[layer] == "experts"
            else FeedForward(config.hidden_size, config.intermediate_size, config.mlp_bias)
        )

    def rows(self, x: Tensor, angles: Angles, rows: Rows, layer: int, deltas: LayerDeltas | None) -> Tensor:
        """All rows of a pass [N, D] -> [N, D]."""
        h = self.mixer_norm(x)
        if isinstance(self.mixer, DeltaNet):
            x = x + self.mixer.rows(h, rows, layer, deltas)
        else:
            x = x + self.mixer.rows(h, angles, rows, layer, deltas)
        return x + self.ffn.rows(self.ffn_norm(x), rows, deltas)

    def commit(self, x: Tensor, angles: Angles, routers: list[Tensor] | None = None) -> tuple[Tensor, Context]:
        """Clean sequences [B, T, D] -> [B, T, D], and the context that previews read."""
        h = self.mixer_norm(x)
        y, context = self.mixer.commit(h) if isinstance(self.mixer, DeltaNet) else self.mixer.commit(h, angles)
        x = x + y
        h = self.ffn_norm(x)
        y = self.ffn(h, routers=routers) if isinstance(self.ffn, Experts) else self.ffn(h)
        return x + y, context

    def preview(self, x: Tensor, angles: Angles, context: Context, blocks: Blocks, deltas: LayerDeltas) -> Tensor:
        """Noisy rows [B, R, D] -> [B, R, D]."""
        h = self.mixer_norm(x)
        if isinstance(self.mixer, DeltaNet):
            x = x + self.mixer.preview(h, cast(DeltaNetContext, context), blocks, deltas)
        else:
            x = x + self.mixer.preview(h, angles, cast(AttentionContext, context), blocks, deltas)
        h = self.ffn_norm(x)
        y = self.ffn(h, deltas, blocks) if isinstance(self.ffn, Experts) else self.ffn(h, deltas)
        return cast(Tensor, x + y)


class Transformer(nn.Module):
    """A decoder-only language model that runs commit and preview rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Given storage, the embedding isn't filled with random numbers that a checkpoint would overwrite.
        storage = torch.empty(config.vocab_size, config.hidden_size)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, _weight=storage)
        self.embed.weight.requires_grad_(False)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_offset)
        self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = cast(nn.Parameter, self.embed.weight)
        self.rope = Rope(config.rope, config.head_dim, config.max_positions)
        self.adapter: Adapter | None = None
        self._program: Program | None = None
        self._programmed: Adapter | bool | None = False

    def decoder_layers(self) -> Iterable[tuple[int, DecoderLayer, LayerDeltas | None]]:
        """(index, layer, its deltas if an adapter is attached), in order."""
        for i, layer in enumerate(self.layers):
            deltas = None if self.adapter is None else cast(LayerDeltas, self.adapter.layers[i])
            yield i, cast(DecoderLayer, layer), deltas

    def pack(self, dtype: torch.dtype, *, keep: bool = False) -> None:
        """Prepare every product for the engine in `dtype`; `keep` leaves the plain weights in place for training."""
        self._programmed = False
        for module in self.modules():
            if isinstance(module, Linear | Experts):
                module.pack(self._format(module, dtype), keep=keep or self._read_by_rows(module))

    def _format(self, module: nn.Module, dtype: torch.dtype) -> torch.dtype:
        """int4 is for layers: the head, which chooses, is int8 then."""
        return torch.int8 if dtype == INT4 and module is self.head else dtype

    def _read_by_rows(self, module: nn.Module) -> bool:
        """Whether rows of the plain weight are read too: a tied head is the embedding, the chain reads candidates."""
        chained = self.adapter is not None and self.adapter.chain is not None
        return module is self.head and (self.config.tie_embeddings or chained)

    def fill(self, tensors: Iterable[tuple[str, Weight]], dtype: torch.dtype | None = None) -> None:
        """Take every weight from (name, float32 tensor) pairs; pack each product for `dtype` as soon as it is complete.

        For int8 and int4 a product's weight may come quantised; a tied head may then come too, under its own name.
        So no more than one plain weight is held beside the packed ones. Attach an adapter before, if there is one.
        None packs nothing. Raises TensorMismatchError that lists missing, unexpected and mis-shaped tensors.
        """
        self._programmed = False
        wanted = {name: p for name, p in self.named_parameters() if not name.startswith("adapter.")}
        faults = []
        for name, given in tensors:
            tied = self.config.tie_embeddings and name == "head.weight"
            if isinstance(given, QuantisedWeight) and tied and self.head.weight.shape == given.shape:
                self.head.quantised = given
                continue
            if name not in wanted:
                faults.append(f"unexpected {name}")
                continue
            parameter = wanted.pop(name)
            if tuple(parameter.shape) != tuple(given.shape):
                faults.append(f"{name} is {tuple(given.shape)}, expected {tuple(parameter.shape)}")
                continue
            owner = name.rpartition(".")[0]
            module = self.get_submodule(owner)
            if isinstance(given, Tensor):
                parameter.data = given
            elif isinstance(module, Linear) and dtype in QUANTISED:
                module.quantised, parameter.data = given, parameter.new_empty(0)
            else:
                parameter.data = given.dequantise()
            if dtype is not None and isinstance(module, Linear | Experts):
                own = [part for part, _ in module.named_parameters(recurse=False)]
                if not any(f"{owner}.{part}" in wanted for part in own):
                    module.pack(self._format(module, dtype), keep=self._read_by_rows(module))
        faults += [f"missing {name}" for name in wanted]
        if faults:
            raise TensorMismatchError(f"the weights don't fit the model: {'; '.join(faults)}")
        if dtype is not None and self.head.kernel is None:  # tied: its weight came with the embedding's name
            self.head.pack(self._format(self.head, dtype), keep=True)

    @property
    def exact(self) -> bool:
        """Whether commit rows get the same bits in every pass (with native kernels all do; else not bfloat16)."""
        return self.head.kernel is not None and self.head.kernel.exact

    @property
    def row_exact(self) -> bool:
        """Whether a prompt may be cut anywhere and share passes with other rows: no commit row's bits depend on it.

        Stronger than `exact`, which leaves prompts to passes of their own, cut on a fixed grid.
        """
        return self.program is not None

    @property
    def program(self) -> Program | None:
        """The layers as one native call, if that can be: made anew after packing, and for another adapter."""
        if self._programmed is not self.adapter:
            self._program, self._programmed = Program.of(self), self.adapter
        return self._program

    def new_state(self) -> RequestState:
        """An empty state for one request."""
        return RequestState(self.config, self.embed.weight.device)

    def rows(self, rows: Rows) -> Tensor:
        """One pass: final hidden vectors [N, D], normalised. Writes every commit row's update as scratch."""
        n = rows.num_commit
        x = self.embed(rows.tokens[:n])
        if n < len(rows.tokens):
            assert self.adapter is not None, "preview rows need an adapter"
            x = torch.cat((x, self.adapter.embed(rows.tokens[n:], rows.block_index, self.embed)))
        angles = self.rope(rows.positions, rows.limit)
        if self.program is not None:
            return self.program.run(x, angles, rows)
        for i, layer, deltas in self.decoder_layers():
            x = layer.rows(x, angles, rows, i, deltas)
        return cast(Tensor, self.norm(x))

    def logits(self, hidden_ND: Tensor, *, exact: bool = True) -> Tensor:
        """Hidden vectors [N, D] -> float32 logits [N, V]. `exact`: each row's bits don't depend on N (commit rows)."""
        if not exact:
            return self.head.rows(hidden_ND, 0, None, None)
        n = len(hidden_ND)
        padded = F.pad(hidden_ND, (0, 0, 0, -n % ROW_TILE)) if self.tiled else hidden_ND
        return self.head.rows(padded, len(padded), ROW_TILE, None)[:n]

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Final hidden vectors [..., D] -> logits [..., V] on the plain weight, for training."""
        return cast(Tensor, self.head(hidden))

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows of the head's plain weight for token ids [...] -> [..., D]."""
        return self.head.weight[ids]

    @property
    def tiled(self) -> bool:
        """Whether exact products need commit rows in whole tiles (`Rows.build(tile=...)`)."""
        return self.head.kernel is not None and self.head.kernel.tiled

    def compile_streams(self) -> None:
        """Compile every layer's clean and noisy side for training: one graph each, for all shapes and layers."""
        for _, layer, _ in self.decoder_layers():
            layer.commit = torch.compile(layer.commit, dynamic=True)  # type: ignore[method-assign]
            layer.preview = torch.compile(layer.preview, dynamic=True)  # type: ignore[method-assign]

    def commit_stream(self, tokens_BT: Tensor, routers: list[Tensor] | None = None) -> tuple[Tensor, list[Context]]:
        """Clean sequences from position 0: final hidden vectors [B, T, D] and every layer's context for previews.

        `routers` collects every router's probabilities [B, T, E].
        """
        length = tokens_BT.shape[1]
        angles = self.rope(torch.arange(length), length)
        x = self.embed(tokens_BT)
        contexts = []
        for _, layer, _ in self.decoder_layers():
            x, context = layer.commit(x, angles, routers)
            contexts.append(context)
        return cast(Tensor, self.norm(x)), contexts

    def preview_stream(self, blocks: Blocks, contexts: list[Context]) -> Tensor:
        """Noisy rows over clean contexts: final hidden vectors [B, R, D]."""
        assert self.adapter is not None, "preview rows need an adapter"
        x = self.adapter.embed(blocks.tokens, blocks.block_index, self.embed)
        angles = self.rope(blocks.positions, self.config.max_positions)
        for i, layer, deltas in self.decoder_layers():
            assert deltas is not None
            x = layer.preview(x, angles, contexts[i], blocks, deltas)
        return cast(Tensor, self.norm(x))
