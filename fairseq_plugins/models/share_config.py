"""The options of ``share_transformer``: fairseq's own, flat, and those of sharing."""

from argparse import Namespace
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Optional  # fairseq's parser does not read X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from omegaconf import OmegaConf

from fairseq_plugins.sharing import PATTERNS

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
    cell_positions: bool = field(
        default=False,
        metadata={
            "help": "with pictures as the source, learned positions of the grid's rows and columns "
            "(default: none)"
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
