"""What a model costs: parameters, bytes, FLOPs, and which columns hold which weight."""

import argparse
import io
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.checkpoints import load_bare, nameless_dictionary
from fairseq_plugins.errors import UserError
from fairseq_plugins.models.share_transformer import ShareTransformerVisualEncoder
from fairseq_plugins.sharing import BorrowedLinear, Lender

TOKENS = 25  # source and target length at which FLOPs are counted


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable entries, every shared tensor counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_as_if_unshared(model: nn.Module) -> int:
    """Return what *model* would hold if every depth owned all that it uses.

    Layer parameters count once a depth and borrowed weights count where they are used; a map
    that only makes lent weights counts as nothing; tables count once, as they are.
    """
    unique = {
        id(p): p.numel()
        for name, p in model.named_parameters()
        if ".layers." not in name and ".lender." not in name
    }
    layers = sum(
        p.numel()
        for name, p in model.named_parameters(remove_duplicate=False)
        if ".layers." in name
    )
    borrowed = sum(
        module.in_features * module.out_features
        for module in model.modules()
        if isinstance(module, BorrowedLinear)
    )
    return sum(unique.values()) + layers + borrowed


def flops_per_token(model: nn.Module, tokens: int = TOKENS) -> int:
    """Return the FLOPs of one forward pass a target token, by torch's own counter.

    A multiplication and an addition are two FLOPs. Source and target have *tokens* tokens each, or
    the source is the cells of a picture, without its backbone. The making of borrowed weights is
    not in it, since it is done once and not for every token.
    """
    ids = torch.full((1, tokens), 5)
    source = {"src_tokens": ids, "src_lengths": torch.tensor([tokens]), "prev_output_tokens": ids}
    if isinstance(model.encoder, ShareTransformerVisualEncoder):
        source |= model.encoder.embed_cells.example()
    was_training = model.training
    model.eval()
    with torch.no_grad():
        model(**source)  # makes the borrowed weights
        with FlopCounterMode(display=False) as counter:
            model(**source)
    model.train(was_training)
    return counter.get_total_flops() // tokens


def lenders(model: nn.Module) -> list[Lender]:
    """Return what the layers of *model* borrow from, each once."""
    return [module for module in model.modules() if isinstance(module, Lender)]


def column_map(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return borrowed weight -> first and last column of the matrix it is read from."""
    return {name: span for lender in lenders(model) for name, span in lender.plan.columns.items()}


def sizes_of_model(model: nn.Module) -> dict[str, Any]:
    """Return the sizes of *model*; bytes are those of the parameters, without any container.

    ``bytes_int8`` takes one byte an entry of a matrix and one fp32 scale a row of it, and leaves
    vectors in fp32.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    entries = sum(p.numel() for p in parameters)
    return {
        "parameters": entries,
        "parameters_as_if_unshared": count_as_if_unshared(model),
        "flops_per_token": flops_per_token(model),
        "bytes_fp32": 4 * entries,
        "bytes_fp16": 2 * entries,
        "bytes_int8": sum(
            p.numel() + 4 * p.shape[0] if p.dim() > 1 else 4 * p.numel() for p in parameters
        ),
        "columns": {name: list(span) for name, span in column_map(model).items()},
        "width": max((lender.plan.width for lender in lenders(model)), default=0),
    }


def sizes_of_checkpoint(path: Path) -> dict[str, Any]:
    """Return the sizes of a checkpoint's model, and ``bytes_on_disk`` of the file itself.

    Raises:
        UserError: not a checkpoint that fairseq can load.
    """
    return sizes_of_model(load_bare(path)) | {"bytes_on_disk": path.stat().st_size}


def sizes_of_arch(arch: str, options: list[str], vocab_size: int) -> dict[str, Any]:
    """Return the sizes of an architecture.

    Args:
        arch: a name that ``fairseq-train --arch`` knows.
        options: the architecture's options, as for ``fairseq-train``.
        vocab_size: rows of every embedding table, fairseq's four special entries included.

    Raises:
        UserError: an unknown architecture or option, or settings that do not fit.
    """
    return sizes_of_model(build(arch, options, vocab_size))


def build(arch: str, options: list[str], vocab_size: int) -> nn.Module:
    """Return a new model of *arch*, see :func:`sizes_of_arch`."""
    if arch not in ARCH_MODEL_REGISTRY:
        raise UserError(f"unknown architecture {arch!r}: fairseq-train --help lists them")
    model_class = ARCH_MODEL_REGISTRY[arch]
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    model_class.add_args(parser)
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            args = parser.parse_args(options)
    except SystemExit as error:
        raise UserError(complaint.getvalue().strip().rpartition("error: ")[2]) from error
    args.arch = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    dictionary = nameless_dictionary(vocab_size)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    dataclass = getattr(model_class, "__dataclass", None)
    return model_class.build_model(dataclass.from_namespace(args) if dataclass else args, task)


def column_map_text(columns: dict[str, tuple[int, int]]) -> str:
    """Return one line a weight: first and last column, how many, name; by column."""
    lines = [
        f"{first:6d} - {last:<6d} {last - first + 1:5d}  {name}"
        for name, (first, last) in sorted(columns.items(), key=lambda item: (item[1], item[0]))
    ]
    return "\n".join([" first - last   count  weight", *lines])
