"""``share_transformer``: fairseq's Transformer whose layers borrow their weights.

The source is text or, for a task that says so, a picture's cells.

Every depth is a layer module of fairseq's own, with its own cache id, biases and norms. What
changes is where the weights of its linear maps come from: a stored layer (sharing patterns of
Takase & Kiyono), columns of the embedding table (EPS) or columns of a virtual matrix (VEPS, both
ShareBERT, AAAI 2024).
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from math import prod

import torch
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from torch import nn

from fairseq_plugins import precision
from fairseq_plugins.errors import UserError
from fairseq_plugins.models.share_config import (
    ShareTransformerBaseConfig,
    ShareTransformerConfig,
    ShareTransformerTinyConfig,
    transformer_config,
)
from fairseq_plugins.models.visual import CellEmbedding, VisualSource
from fairseq_plugins.sharing import (
    ColumnPlan,
    FactorizedEmbedding,
    Lender,
    SharingError,
    VirtualLender,
    borrow,
    columns_needed,
    inert_rows,
    layer_indices,
    rows_needed,
    tie,
    weight_shapes,
)


def _check(cfg: TransformerConfig, task) -> None:
    """Refuse what cannot work, with a way out.

    Raises:
        UserError: see the messages.
    """
    source, target = task.source_dictionary, task.target_dictionary
    if _visual(task) and cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise UserError(
            f"--encoder-embed-dim {cfg.encoder.embed_dim} and --decoder-embed-dim "
            f"{cfg.decoder.embed_dim}: one caption table serves both sides, so they must be equal"
        )
    if cfg.share_all_embeddings and source != target and not _visual(task):
        raise UserError(
            f"--share-all-embeddings: the source dictionary has {len(source)} entries, the target "
            f"dictionary {len(target)}, and they must be one: prepare the data with "
            "fairseq-preprocess --joined-dictionary, or leave --share-all-embeddings out"
        )
    if cfg.weight_source == "stored":
        return
    changes_weights = {
        "--quant-noise-pq": cfg.quant_noise.pq,
        "--quant-noise-scalar": cfg.quant_noise.scalar,
        "--encoder-layers-to-keep": cfg.encoder.layers_to_keep,
        "--decoder-layers-to-keep": cfg.decoder.layers_to_keep,
        "--adaptive-input": cfg.adaptive_input,
    }
    for option, value in changes_weights.items():
        if value:
            raise UserError(
                f"{option} changes a layer's own weights, and with --weight-source "
                f"{cfg.weight_source} it has none: leave it out, or use --weight-source stored"
            )


def _visual(task) -> VisualSource | None:
    return getattr(task, "visual_source", None)


class _Borrower:
    """A side of the model that may have a lender."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lender: Lender | None = None

    def lending(self) -> AbstractContextManager:
        """All weights of this side are made once inside this block."""
        return nullcontext() if self.lender is None else self.lender.lend()


class ShareTransformerEncoder(_Borrower, TransformerEncoderBase):
    """fairseq's encoder, (batch, source length) ids -> (source length, batch, width)."""

    def forward(self, *args, **kwargs):
        with self.lending():
            return super().forward(*args, **kwargs)


class ShareTransformerVisualEncoder(ShareTransformerEncoder):
    """The same encoder for the cells of pictures; its own table is only there to lend weights.

    Args:
        cfg, dictionary, embed_tokens: as fairseq's; the captions' dictionary and table.
        source: the cells.
    """

    def __init__(self, cfg: TransformerConfig, dictionary, embed_tokens, source: VisualSource):
        super().__init__(cfg, dictionary, embed_tokens)
        self.embed_positions = None
        self.embed_cells = CellEmbedding(
            source, cfg.encoder.embed_dim, positions=cfg.cell_positions, dropout=cfg.dropout
        )

    def forward(
        self,
        src_tokens,
        src_lengths=None,
        cells=None,
        pixels=None,
        boxes=None,
        image_of_caption=None,
        **kwargs,
    ):
        """Encode a batch of pictures.

        Args:
            src_tokens: (batch, cells), the dictionary's pad where a picture has no more cells.
            cells, pixels, boxes: see :class:`CellEmbedding`.
            image_of_caption: not the encoder's business.
        """
        x = self.embed_cells(cells, pixels, boxes)
        return super().forward(src_tokens, src_lengths, token_embeddings=x, **kwargs)

    def forward_embedding(self, src_tokens, token_embedding):
        return token_embedding, token_embedding


class ShareTransformerDecoder(_Borrower, TransformerDecoderBase):
    """fairseq's decoder, (batch, target length) ids -> (batch, target length, vocabulary)."""

    def extract_features(self, *args, **kwargs):
        with self.lending():
            return super().extract_features(*args, **kwargs)


@register_model("share_transformer", dataclass=ShareTransformerConfig)
class ShareTransformerModel(TransformerModelBase):
    """An encoder-decoder Transformer that says who borrows what."""

    def __init__(self, cfg: TransformerConfig, encoder, decoder):
        super().__init__(cfg, encoder, decoder)
        self.kind = _share(cfg, {"encoder": encoder, "decoder": decoder})
        if cfg.visual_source:
            self.kind["cells"] = cfg.visual_source.describe()
        # As a buffer it goes wherever the weights go; "version" in its name keeps fairseq's
        # moving average off it; int16 leaves room for fairseq's sum over checkpoints.
        description = json.dumps(self.kind).encode()
        self.register_buffer("sharing_version", torch.tensor(list(description), dtype=torch.int16))

    @classmethod
    def add_args(cls, parser):
        super(TransformerModelBase, cls).add_args(parser)  # from the flat dataclass

    @classmethod
    def build_model(cls, cfg, task):
        """Build the model for *task*.

        Raises:
            UserError: settings that do not fit together, with the numbers and a way out.
        """
        precision.refuse_half_on_cpu(cfg)
        cfg = transformer_config(cfg)
        cfg.visual_source = _visual(task)
        _check(cfg, task)
        try:
            if cfg.visual_source:
                return cls._build_visual(cfg, task.target_dictionary)
            return super().build_model(cfg, task)
        except SharingError as error:
            raise UserError(str(error)) from error

    @classmethod
    def _build_visual(cls, cfg, words):
        """Build the model whose two sides borrow from the one table, of *words*."""
        table = cls.build_embedding(cfg, words, cfg.decoder.embed_dim, cfg.decoder.embed_path)
        encoder = ShareTransformerVisualEncoder(cfg, words, table, cfg.visual_source)
        return cls(cfg, encoder, cls.build_decoder(cfg, words, table))

    @classmethod
    def build_embedding(cls, cfg, dictionary, embed_dim, path=None):
        if not cfg.factor_dim:
            return super().build_embedding(cfg, dictionary, embed_dim, path)
        if path:
            raise UserError("--factor-dim has its own table: leave out the pretrained embeddings")
        return FactorizedEmbedding(len(dictionary), cfg.factor_dim, embed_dim, dictionary.pad())

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return ShareTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return ShareTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )

    def forward(self, *args, image_of_caption=None, **kwargs):
        """As fairseq's; each table is read once for both sides.

        Args:
            image_of_caption: (captions,), the row of each caption's picture in the source: a
                picture with several captions is encoded once. None: row by row.
        """
        with ExitStack() as stack:
            stack.enter_context(self.encoder.lending())
            stack.enter_context(self.decoder.lending())
            if self.cfg.cpu_autocast and self.training:
                stack.enter_context(precision.cpu_autocast(self.sharing_version.device))
            if image_of_caption is None:
                return super().forward(*args, **kwargs)
            prev_output_tokens = kwargs.pop("prev_output_tokens")
            encoder_out = self.encoder(*args, **kwargs)
            encoder_out = self.encoder.reorder_encoder_out(encoder_out, image_of_caption)
            return self.decoder(prev_output_tokens, encoder_out=encoder_out)

    def aliases(self) -> dict[str, str]:
        """Return name -> first name of every parameter that has more than one."""
        first: dict[int, str] = {}
        names = {
            name: first.setdefault(id(parameter), name)
            for name, parameter in self.named_parameters(remove_duplicate=False)
        }
        return {name: owner for name, owner in names.items() if name != owner}

    def state_dict(self, *args, **kwargs):
        """As fairseq's, but every shared parameter stands in it once.

        So a file holds it once, and fairseq's moving average updates it once.
        """
        state = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", "")
        for name in self.aliases():
            state.pop(prefix + name)
        return state

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's.

        Raises:
            UserError: the checkpoint shares in another way than this model.
        """
        described = state_dict.get("sharing_version")
        kind = json.loads(bytes(described.tolist())) if described is not None else None
        theirs, ours = _comparable(kind), _comparable(self.kind)
        if strict and theirs != ours:
            if theirs | {"cells": ours["cells"]} == ours and theirs["cells"] and ours["cells"]:
                names = ("origin", *ours["cells"])
                name = next(n for n in names if theirs["cells"].get(n) != ours["cells"][n])
                raise UserError(
                    f"the checkpoint knows cells of {name} {theirs['cells'].get(name)}, and these "
                    f"are of {name} {ours['cells'][name]}: name the features or the backbone that "
                    "it was trained with"
                )
            raise UserError(
                f"the checkpoint is {describe(kind)}, and this model is {describe(self.kind)}: "
                "train or load it with the options it was made with"
            )
        state_dict = dict(state_dict) | {"sharing_version": self.sharing_version}
        for name, owner in self.aliases().items():
            if owner in state_dict:
                state_dict[name] = state_dict[owner]
        return super().load_state_dict(state_dict, strict, model_cfg, args)


def _share(cfg: TransformerConfig, sides: Mapping[str, nn.Module]) -> dict:
    """Let every depth of every side borrow; return what is shared, for the checkpoint.

    Raises:
        SharingError: a pattern or a plan that does not fit, with the numbers.
    """
    # by index: iterating LayerDrop's list leaves layers out
    depths = {
        side: [part.layers[i] for i in range(part.num_layers)] for side, part in sides.items()
    }
    indices = {
        side: layer_indices(cfg.share_pattern, getattr(cfg, side).stored_layers, len(layers))
        for side, layers in depths.items()
    }
    borrowers = (
        []
        if cfg.weight_source == "stored"
        else [side for side in sides if cfg.borrow in ("both", side)]
    )
    columns: dict[str, tuple[int, int]] = {}
    tables = {id(sides[side].embed_tokens): sides[side].embed_tokens for side in borrowers}
    for table in tables.values():
        lent = [side for side in borrowers if sides[side].embed_tokens is table]
        shapes = {
            f"{side}.{stored}.{name}": shape
            for side in lent
            for stored in range(max(indices[side]) + 1)
            for name, shape in weight_shapes(depths[side][0]).items()
        }
        lender = _lender(cfg, table, shapes)
        columns |= lender.plan.columns
        for side in lent:
            sides[side].lender = lender
            borrow(depths[side], indices[side], lender, side)
    for side, layers in depths.items():
        tie(layers, indices[side], everything=cfg.share_norms)
    return {
        "weight_source": cfg.weight_source,
        "pattern": cfg.share_pattern,
        "layers": indices,
        "share_norms": cfg.share_norms,
        "columns": {name: list(span) for name, span in columns.items()},
    }


def _lender(cfg: TransformerConfig, table: nn.Embedding, shapes) -> Lender:
    total = table.num_embeddings
    rows = len(range(total)[inert_rows(total, table.padding_idx)])
    needed = columns_needed(rows, shapes)
    if cfg.weight_source == "veps":
        width, room, option = cfg.virtual_dim or needed, "virtual matrix", "--virtual-dim"
    else:
        width, room, option = table.weight.shape[1], "embedding table", "its width"
    if needed <= width:
        plan = ColumnPlan(rows, width, shapes)
        return (
            Lender(table, plan)
            if cfg.weight_source == "eps"
            else VirtualLender(table, plan, cfg.virtual_gain)
        )
    raise SharingError(
        f"the layer weights need {needed} columns of {rows} rows, and the {room} has {width} "
        f"({option}). What fits: {'; '.join(_fits(cfg, shapes, width, rows, total))}"
    )


def _fits(cfg: TransformerConfig, shapes, width: int, rows: int, total: int) -> list[str]:
    """Return the nearest settings at which *shapes* fit, each in a few words."""
    fits = []
    for ffn in range(max(cfg.encoder.ffn_embed_dim, cfg.decoder.ffn_embed_dim) - 8, 0, -8):
        smaller = {
            name: (inputs, min(outputs, ffn))
            if name.endswith("fc1")
            else (min(inputs, ffn), outputs)
            if name.endswith("fc2")
            else (inputs, outputs)
            for name, (inputs, outputs) in shapes.items()
        }
        if columns_needed(rows, smaller) <= width:
            fits.append(f"an FFN of {ffn} (--encoder-ffn-embed-dim, --decoder-ffn-embed-dim)")
            break
    if enough := rows_needed(width, shapes):
        fits.append(f"a vocabulary of {enough + total - rows} entries (now {total})")
    for side in ("encoder", "decoder"):
        alone = {name: shape for name, shape in shapes.items() if name.startswith(side)}
        if 0 < len(alone) < len(shapes) and columns_needed(rows, alone) <= width:
            fits.append(f"--borrow {side} ({columns_needed(rows, alone)} columns)")
    needed, factor = columns_needed(rows, shapes), cfg.factor_dim or width
    fits.append(
        f"--weight-source veps --virtual-dim {needed} (a map of {factor * needed:,} parameters, "
        f"fewer with a lower --factor-dim; stored layers have {sum(map(prod, shapes.values())):,})"
    )
    return fits


def _comparable(kind: dict | None) -> dict:
    """Return *kind* without what may differ.

    The pattern's name: with one stored layer they are all the same. And the picture source's
    manifest, of which ``origin`` has what counts.
    """
    cells = (kind or {}).get("cells", {})
    return (kind or {}) | {"pattern": "", "cells": {k: cells[k] for k in cells if k != "manifest"}}


def describe(kind: dict | None) -> str:
    """Return how a model shares, in a few words."""
    if kind is None:
        return "of an architecture without sharing"
    sides = ", ".join(
        f"{side} {max(layers) + 1} stored for {len(layers)} executed layers"
        for side, layers in kind["layers"].items()
    )
    columns = sum(last - first + 1 for first, last in kind["columns"].values())
    return (
        f"{kind['weight_source']} / {kind['pattern']} ({sides}"
        + (", norms shared" if kind["share_norms"] else "")
        + (f", {columns} columns lent" if columns else "")
        + ")"
        + (f" for cells of {kind['cells']['origin']}" if "cells" in kind else "")
    )


@register_model("share_transformer_tiny", dataclass=ShareTransformerTinyConfig)
class ShareTransformerTinyModel(ShareTransformerModel):
    """3 + 3 layers, width 64, FFN 128, 4 heads: the demo."""


@register_model("share_transformer_base", dataclass=ShareTransformerBaseConfig)
class ShareTransformerBaseModel(ShareTransformerModel):
    """Transformer base (6 + 6 layers, width 512, FFN 2048, 8 heads) by EPS."""
