"""One set of parameters for several depths."""

from collections.abc import Sequence

from torch import nn

from fairseq_plugins.sharing.lenders import BorrowedLinear, Lender

# The order of the published column layout (Q, K, V, FFN in, FFN out, attention output), with the
# decoder's cross-attention beside its self-attention.
LENDABLE = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "encoder_attn.q_proj",
    "encoder_attn.k_proj",
    "encoder_attn.v_proj",
    "fc1",
    "fc2",
    "self_attn.out_proj",
    "encoder_attn.out_proj",
)


def lendable(layer: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear maps of *layer* that can be stored elsewhere, in the plan's order."""
    maps = dict(layer.named_modules())
    return {name: maps[name] for name in LENDABLE if name in maps}


def weight_shapes(layer: nn.Module) -> dict[str, tuple[int, int]]:
    """Return map -> (in, out) of every lendable map of *layer*."""
    return {
        name: (linear.in_features, linear.out_features) for name, linear in lendable(layer).items()
    }


def borrow(layers: Sequence[nn.Module], indices: Sequence[int], lender: Lender, prefix: str):
    """Make every depth borrow its weights from *lender*, as ``{prefix}.{stored}.{map}``."""
    for layer, index in zip(layers, indices, strict=True):
        for name, linear in lendable(layer).items():
            layer.set_submodule(name, BorrowedLinear(linear, lender, f"{prefix}.{index}.{name}"))


def tie(layers: Sequence[nn.Module], indices: Sequence[int], *, everything: bool):
    """Make every depth use the parameters of the first depth that runs the same stored layer.

    The modules stay apart, each with its own cache id: only parameters are shared.

    Args:
        layers: one module a depth.
        indices: the stored layer of each depth.
        everything: share biases and norms as well, not only the weights of linear maps.
    """
    for depth, index in enumerate(indices):
        first = layers[indices.index(index)]
        if first is layers[depth]:
            continue
        for name, parameter in list(first.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            if everything or (owner in LENDABLE and leaf == "weight"):
                setattr(layers[depth].get_submodule(owner), leaf, parameter)
