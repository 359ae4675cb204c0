"""Ratios measured side by side in one run; each file is one command."""
