"""The demo's corpus: written by ``grammar.py``, line-aligned English and Vietnamese."""
