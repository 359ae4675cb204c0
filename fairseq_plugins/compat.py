"""Work-arounds for the installed fairseq (ve-fairseq 0.12.3), each with its symptom.

A test beside each fails when it is no longer needed.
"""

import argparse

import torch


def allow_checkpoint_classes() -> None:
    """Let ``torch.load`` read fairseq's checkpoints, and nothing else, safely.

    Symptom: resume, generate, fine-tune and average stop with ``UnpicklingError: Weights only
    load failed``. torch >= 2.6 loads with ``weights_only=True``, and fairseq's checkpoints hold
    an ``argparse.Namespace``. timm takes the class off the list after it has loaded weights, so
    whoever loads with timm calls this again.
    """
    torch.serialization.add_safe_globals([argparse.Namespace])
