import pytest

from fairseq_plugins.sharing import PATTERNS, layer_indices


@pytest.mark.parametrize(
    ("pattern", "letters"),
    [("sequence", "AABBCC"), ("cycle", "ABCABC"), ("cycle_rev", "ABCCBA"), ("none", "ABCDEF")],
)
def test_papers_example(pattern, letters):
    assert "".join("ABCDEF"[i] for i in layer_indices(pattern, 3, 6)) == letters


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_stored_layer_runs(pattern):
    for layers in range(1, 8):
        for stored in range(1, layers + 1):
            indices = layer_indices(pattern, stored, layers)
            assert len(indices) == layers
            assert set(indices) == set(range(layers if pattern == "none" else stored))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_simple_share_is_the_same_in_every_pattern(pattern):
    if pattern != "none":
        assert layer_indices(pattern, 1, 4) == [0, 0, 0, 0]


@pytest.mark.parametrize("stored", [0, 4])
def test_refuses_what_cannot_serve(stored):
    with pytest.raises(ValueError, match=f"{stored} stored layers cannot serve 3"):
        layer_indices("cycle", stored, 3)


def test_refuses_an_unknown_pattern():
    with pytest.raises(ValueError, match=r"'spiral'.*cycle_rev"):
        layer_indices("spiral", 1, 3)
