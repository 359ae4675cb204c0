import unicodedata

import pytest

from fairseq_plugins.errors import UserError
from fairseq_plugins.text import clean, read_lines, read_parallel


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("hôm nay\rtrời đẹp", "hôm nay trời đẹp"),
        ("a\u2028b\u2029c\x0bd\x0ce\x85f", "a b c d e f"),
        ("\ufeffđầu dòng", "đầu dòng"),
        ("co\u00adoperate zero\u200bwidth \u200eleft", "cooperate zerowidth left"),
        ("  hai\t \u00a0khoảng \u3000trắng ", "hai khoảng trắng"),
        (unicodedata.normalize("NFD", "phở ở Hà Nội"), "phở ở Hà Nội"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # a joiner is part of the word
    ],
)
def test_clean(raw, cleaned):
    assert clean(raw) == cleaned


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffmột\r\nhai\rba\u2028bốn\n\nnăm".encode())
    assert list(read_lines(path)) == ["một", "hai ba bốn", "", "năm"]


def test_invalid_utf8_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"good\nb\xe9d\n")
    with pytest.raises(UserError, match=rf"{path}:2: not UTF-8 \(byte 2"):
        list(read_lines(path))


def test_missing_file_is_shown_whole(tmp_path):
    with pytest.raises(UserError, match=rf"{tmp_path}/none: No such file"):
        list(read_lines(tmp_path / "none"))


def test_unequal_line_counts(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(UserError, match=r"a has 3, .*b has 2"):
        list(read_parallel([tmp_path / "a", tmp_path / "b"]))


def test_a09_every_odd_separator_is_in_a_line_not_between_lines(tmp_path):
    odd = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
    text = "".join(f"a{separator}b\n" for separator in odd)
    assert len(text.splitlines()) == 2 * len(odd)  # what Python alone makes of it
    (tmp_path / "odd").write_text(text, newline="")
    (tmp_path / "even").write_text("a b\n" * len(odd))
    rows = list(read_parallel([tmp_path / "odd", tmp_path / "even"]))
    assert rows == [("a b", "a b")] * len(odd)
