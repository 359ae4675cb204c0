"""``share_transformer``: fairseq's Transformer whose layers borrow their weights.

Every depth is a layer module of fairseq's own, with its own cache id, biases and norms. What
changes is where the weights of its linear maps come from: a stored layer (sharing patterns of
Takase & Kiyono), columns of the embedding table (EPS) or columns of a virtual matrix (VEPS, both
ShareBERT, AAAI 2024).
"""

import json
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_plugins import precision
from fairseq_plugins.errors import UserError
from fairseq_plugins.sharing import (
    PATTERNS,
    ColumnPlan,
    FactorizedEmbedding,
    Lender,
    VirtualLender,
    borrow,
    columns_needed,
    inert_rows,
    layer_indices,
    rows_needed,
    tie,
    weight_shapes,
)

NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}
AS_ENCODER = ("decoder_embed_dim", "decoder_ffn_embed_dim")
AS_DECODER = ("decoder_input_dim", "decoder_output_dim")


def _fairseq_options():
    """Yield (name, type, field) of every option of fairseq's Transformer, flat.

    fairseq cannot put nested dataclasses through its bridge from argparse to hydra.
    """
    for option in fields(TransformerConfig):
        prefix = f"{option.name}_" if option.name in NESTED else ""
        for leaf in fields(NESTED[option.name]) if prefix else [option]:
            if leaf.name == "_name":
                continue
            name, kind, default, extra = prefix + leaf.name, leaf.type, leaf.default, ""
            if name in AS_ENCODER:
                kind, default, extra = Optional[int], None, " (default: as the encoder's)"
            elif name in AS_DECODER:
                kind, default, extra = Optional[int], None, " (default: --decoder-embed-dim)"
            elif default is not MISSING and "default" not in leaf.metadata.get("help", ""):
                extra = f" (default: {default})"
            metadata = dict(leaf.metadata) | {"help": leaf.metadata.get("help", name) + extra}
            yield name, kind, field(default=default, metadata=metadata)


_FairseqOptions = make_dataclass(
    "_FairseqOptions",
    _fairseq_options(),
    bases=(FairseqDataclass,),
    namespace={"__module__": __name__},
)


@dataclass
class ShareTransformerConfig(_FairseqOptions):
    """fairseq's Transformer options under their own names, and those of sharing."""

    share_pattern: ChoiceEnum(list(PATTERNS)) = field(
        default="cycle",
        metadata={
            "help": "which stored layer runs at which depth, for 3 stored and 6 executed: "
            "sequence AABBCC, cycle ABCABC, cycle_rev ABCCBA; none: every depth has its own "
            "(default: cycle)"
        },
    )
    encoder_stored_layers: int = field(
        default=1,
        metadata={
            "help": "encoder layers stored, from 1 to --encoder-layers, which are executed; "
            "1 is Simple-Share (default: 1)"
        },
    )
    decoder_stored_layers: int = field(
        default=1,
        metadata={
            "help": "decoder layers stored, from 1 to --decoder-layers, which are executed "
            "(default: 1)"
        },
    )
    weight_source: ChoiceEnum(["stored", "eps", "veps"]) = field(
        default="stored",
        metadata={
            "help": "where layer weights come from: stored layers; eps: columns of the embedding "
            "table; veps: columns of a virtual matrix, a learned map of the table "
            "(default: stored)"
        },
    )
    borrow: ChoiceEnum(["both", "encoder", "decoder"]) = field(
        default="both",
        metadata={"help": "with eps and veps, the side that borrows (default: both)"},
    )
    factor_dim: int = field(
        default=0,
        metadata={
            "help": "width of the embedding table, in columns; a learned map takes it to the "
            "model's width; 0: the model's width, no map (default: 0)"
        },
    )
    virtual_dim: int = field(
        default=0,
        metadata={
            "help": "width of the virtual matrix of veps, in columns; 0: as many as the weights "
            "need (default: 0)"
        },
    )
    virtual_gain: float = field(
        default=1.0,
        metadata={
            "help": "deviation of the weights that veps derives, at the start, as a multiple of "
            "Xavier's (default: 1.0)"
        },
    )
    share_norms: bool = field(
        default=False,
        metadata={
            "help": "depths that share a layer share its biases and norms too (default: each "
            "depth has its own)"
        },
    )
    post_norm: bool = field(
        default=False,
        metadata={
            "help": "with eps and veps, keep fairseq's post-norm layers; they train badly on "
            "borrowed weights (default: pre-norm, as with --encoder-normalize-before "
            "--decoder-normalize-before)"
        },
    )
    cpu_autocast: bool = field(
        default=False,
        metadata={
            "help": "train on a CPU with matrix products in bfloat16; parameters, loss and "
            "optimiser stay in fp32 (default: fp32)"
        },
    )


def transformer_config(cfg) -> TransformerConfig:
    """Return fairseq's nested configuration for the flat *cfg*, with defaults filled in."""
    if not OmegaConf.is_config(cfg):
        cfg = OmegaConf.structured(cfg)
    options = Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    for name in AS_ENCODER:
        if getattr(options, name) is None:
            setattr(options, name, getattr(options, name.replace("decoder", "encoder")))
    for name in AS_DECODER:
        if getattr(options, name) is None:
            setattr(options, name, options.decoder_embed_dim)
    if options.factor_dim == options.encoder_embed_dim:
        options.factor_dim = 0
    if options.factor_dim:
        options.decoder_output_dim = options.factor_dim
    if options.weight_source != "stored" and not options.post_norm:
        options.encoder_normalize_before = options.decoder_normalize_before = True
    return TransformerConfig.from_namespace(options)


def _check(cfg: TransformerConfig, task) -> None:
    """Refuse what cannot work, with a way out.

    Raises:
        UserError: see the messages.
    """
    source, target = task.source_dictionary, task.target_dictionary
    if cfg.share_all_embeddings and source != target:
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
        _check(cfg, task)
        try:
            return super().build_model(cfg, task)
        except ValueError as error:
            raise UserError(str(error)) from error

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

    def forward(self, *args, **kwargs):
        """As fairseq's; each table is read once for both sides."""
        with ExitStack() as stack:
            stack.enter_context(self.encoder.lending())
            stack.enter_context(self.decoder.lending())
            if self.cfg.cpu_autocast and self.training:
                stack.enter_context(precision.cpu_autocast(self.sharing_version.device))
            return super().forward(*args, **kwargs)

    def aliases(self) -> dict[str, str]:
        """Return name -> first name of every layer parameter that several depths share."""
        first: dict[int, str] = {}
        names = {
            name: first.setdefault(id(parameter), name)
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if ".layers." in name or ".lender." in name
        }
        return {name: owner for name, owner in names.items() if name != owner}

    def state_dict(self, *args, **kwargs):
        """As fairseq's, but every stored layer stands in it once."""
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
        if strict and kind != self.kind:
            raise UserError(
                f"the checkpoint is {describe(kind)}, and this model is {describe(self.kind)}: "
                "train or load it with the options it was made with"
            )
        state_dict = dict(state_dict)
        for name, owner in self.aliases().items():
            if owner in state_dict:
                state_dict[name] = state_dict[owner]
        return super().load_state_dict(state_dict, strict, model_cfg, args)


def _share(cfg: TransformerConfig, sides: Mapping[str, nn.Module]) -> dict:
    """Let every depth of every side borrow; return what is shared, for the checkpoint.

    Raises:
        ValueError: a pattern or a plan that does not fit, with the numbers.
    """
    indices = {
        side: layer_indices(cfg.share_pattern, getattr(cfg, side).stored_layers, len(part.layers))
        for side, part in sides.items()
    }
    borrowers = (
        []
        if cfg.weight_source == "stored"
        else [side for side in sides if cfg.borrow in ("both", side)]
    )
    columns: dict[str, tuple[int, int]] = {}
    for table in {
        id(sides[side].embed_tokens): sides[side].embed_tokens for side in borrowers
    }.values():
        lent = [side for side in borrowers if sides[side].embed_tokens is table]
        shapes = {
            f"{side}.{stored}.{name}": shape
            for side in lent
            for stored in range(max(indices[side]) + 1)
            for name, shape in weight_shapes(sides[side].layers[0]).items()
        }
        lender = _lender(cfg, table, shapes)
        columns |= lender.plan.columns
        for side in lent:
            sides[side].lender = lender
            borrow(sides[side].layers, indices[side], lender, side)
    for side, part in sides.items():
        tie(part.layers, indices[side], everything=cfg.share_norms)
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
        width, room, option = table.weight.shape[1], "embedding table", "the model's width"
    if needed <= width:
        plan = ColumnPlan(rows, width, shapes)
        return (
            Lender(table, plan)
            if cfg.weight_source == "eps"
            else VirtualLender(table, plan, cfg.virtual_gain)
        )
    raise ValueError(
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
    needed = columns_needed(rows, shapes)
    fits.append(f"--weight-source veps --virtual-dim {needed}")
    return fits


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
    )


def _sized(name: str, **sizes) -> type[FairseqDataclass]:
    """Return ShareTransformerConfig with other defaults.

    A registered model of its own, and not fairseq's ``register_model_architecture``, which only
    the command line reads: a hydra configuration that names such an architecture silently builds
    the base model (fairseq issues 4675, 2883, 5229).
    """
    known = {option.name: option for option in fields(ShareTransformerConfig)}
    changed = [
        (key, known[key].type, field(default=value, metadata=dict(known[key].metadata)))
        for key, value in sizes.items()
    ]
    return make_dataclass(
        name, changed, bases=(ShareTransformerConfig,), namespace={"__module__": __name__}
    )


ShareTransformerTinyConfig = _sized(
    "ShareTransformerTinyConfig",
    encoder_embed_dim=64,
    encoder_ffn_embed_dim=128,
    encoder_layers=3,
    encoder_attention_heads=4,
    decoder_layers=3,
    decoder_attention_heads=4,
)
ShareTransformerBaseConfig = _sized("ShareTransformerBaseConfig", weight_source="eps")


@register_model("share_transformer_tiny", dataclass=ShareTransformerTinyConfig)
class ShareTransformerTinyModel(ShareTransformerModel):
    """3 + 3 layers, width 64, FFN 128, 4 heads: the demo."""


@register_model("share_transformer_base", dataclass=ShareTransformerBaseConfig)
class ShareTransformerBaseModel(ShareTransformerModel):
    """Transformer base (6 + 6 layers, width 512, FFN 2048, 8 heads) by EPS."""
