"""Architectures, registered with fairseq."""
