"""Which stored layer runs at which depth.

The patterns of Takase & Kiyono, "Lessons on Parameter Sharing across Layers in Transformers"
(section 2, figure 1). M stored layers, N executed; M = 1 is the Universal Transformer's sharing,
our Simple-Share, whatever the pattern.
"""

from collections.abc import Callable

from fairseq_plugins.sharing.errors import SharingError

PATTERNS: dict[str, Callable[[int, int, int], int]] = {
    # name: (depth i, stored M, executed N) -> stored layer
    "none": lambda i, m, n: i,
    "sequence": lambda i, m, n: i * m // n,
    "cycle": lambda i, m, n: i % m,
    "cycle_rev": lambda i, m, n: i % m if i < n - m else m - 1 - (i - (n - m)),
}


def layer_indices(pattern: str, stored: int, layers: int) -> list[int]:
    """Return, for each depth 0..layers-1, the index of the stored layer that runs there.

    With M = 3 and N = 6: sequence 001122, cycle 012012, cycle_rev 012210. ``none`` stores every
    depth and takes no notice of *stored*.

    Raises:
        SharingError: an unknown pattern, or not 1 <= stored <= layers.
    """
    if pattern not in PATTERNS:
        raise SharingError(
            f"unknown sharing pattern {pattern!r}: choose from {', '.join(PATTERNS)}"
        )
    if pattern != "none" and not 1 <= stored <= layers:
        raise SharingError(
            f"{stored} stored layers cannot serve {layers} executed ones: "
            f"store between 1 and {layers}"
        )
    return [PATTERNS[pattern](i, stored, layers) for i in range(layers)]
