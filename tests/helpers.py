"""Small models for tests."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import fairseq_plugins
from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.models.share_config import ShareTransformerConfig
from fairseq_plugins.models.share_transformer import ShareTransformerModel

USER_DIR = str(Path(fairseq_plugins.__file__).parent)
SMALL = {  # case A1's sizes
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
    "share_decoder_input_output_embed": True,
}
# every way to share, each small enough to fit
KINDS = {
    "none": {"share_pattern": "none"},
    "simple_share": {},
    "sequence": {"share_pattern": "sequence", "encoder_stored_layers": 2},
    "cycle": {"share_pattern": "cycle", "decoder_stored_layers": 2},
    "cycle_rev": {"share_pattern": "cycle_rev", "decoder_stored_layers": 2, "share_norms": True},
    "eps": {"weight_source": "eps"},
    "eps_joined": {"weight_source": "eps", "share_all_embeddings": True},
    "eps_post_norm": {"weight_source": "eps", "post_norm": True, "share_norms": True},
    "eps_encoder": {"weight_source": "eps", "borrow": "encoder"},
    "veps": {"weight_source": "veps", "factor_dim": 8},
    "veps_joined": {"weight_source": "veps", "factor_dim": 8, "share_all_embeddings": True},
    "veps_cycle": {"weight_source": "veps", "decoder_stored_layers": 2, "virtual_dim": 150},
}


def build(words: int = 600, target_words: int | None = None, **options) -> ShareTransformerModel:
    """Return a model of case A1's sizes; one dictionary unless *target_words* is given."""
    source = nameless_dictionary(words + 4)
    target = source if target_words is None else nameless_dictionary(target_words + 4)
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target)
    torch.manual_seed(1)
    return ShareTransformerModel.build_model(ShareTransformerConfig(**(SMALL | options)), task)


def batch(words: int = 600, source: int = 6, target: int = 7, sentences: int = 2):
    """Return (source ids, source lengths, target ids), without padding."""
    generator = torch.Generator().manual_seed(2)
    ids = [
        torch.randint(4, words + 4, (sentences, length), generator=generator)
        for length in (source, target)
    ]
    return ids[0], torch.full((sentences,), source), ids[1]


def fairseq(command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run one of fairseq's commands, as a user would, on the CPU."""
    code = f"from fairseq_cli.{command} import cli_main; cli_main()"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not check or result.returncode == 0, result.stderr[-3000:]
    return result


def share(*arguments, check: bool = True, **options) -> subprocess.CompletedProcess:
    """Run ``fairseq-share``, as a user would; *options* are those of ``subprocess.run``."""
    code = "import sys, fairseq_share; sys.exit(fairseq_share.main())"
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(USER_DIR).parent)},
        timeout=250,
        **options,
    )
    assert not check or result.returncode == 0, result.stderr[-3000:]
    return result
