import json
import subprocess
import sys
import unicodedata

import pytest
from typer.testing import CliRunner

from fairseq_plugins.errors import UserError
from translation.cli import app
from translation.score import score

PIECES = ["▁Con ▁m èo ▁ng ủ ▁trên ▁gh ế .", "▁T ôi ▁qu ên ▁m ang ▁ô ."]
REFERENCES = ["Con mèo ngủ trên giường .", "Tôi quên mang mũ ."]


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines))
    return path


def bleu(rows):
    return next(row for row in rows if row["name"] == "BLEU")


def detokenised(pieces):
    return pieces.replace(" ", "").replace("▁", " ").strip()


def test_a04_words_are_scored_not_pieces(tmp_path):
    hypotheses = write(tmp_path / "hyp", [f"{detokenised(p)[:-1]} ." for p in PIECES])
    references = write(tmp_path / "ref", REFERENCES)
    row = bleu(score(hypotheses, [references]))
    assert row["score"] == pytest.approx(44.43, abs=0.005)
    assert row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")
    command = [sys.executable, "-m", "sacrebleu", references, "-i", hypotheses, "-b", "-w", "2"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert row["score"] == pytest.approx(float(printed), abs=0.01)


def test_a05_decomposed_vietnamese_matches(tmp_path):
    text = "Tôi rất thích món phở ở Hà Nội ."
    hypotheses = write(tmp_path / "hyp", [unicodedata.normalize("NFD", text)])
    references = write(tmp_path / "ref", [text])
    assert bleu(score(hypotheses, [references]))["score"] == pytest.approx(100)


def test_several_references(tmp_path):
    hypotheses = write(tmp_path / "hyp", ["Tôi ăn một bát cơm nóng ."])
    far = write(tmp_path / "far", ["Họ mua hai con gà ."])
    near = write(tmp_path / "near", ["Tôi ăn một bát cơm nóng ."])
    assert bleu(score(hypotheses, [far]))["score"] < 20
    both = bleu(score(hypotheses, [far, near]))
    assert both["score"] == pytest.approx(100) and both["signature"].startswith("nrefs:2")


def test_unequal_line_counts(tmp_path):
    with pytest.raises(UserError, match=r"hyp has 1, .*ref has 2"):
        score(write(tmp_path / "hyp", ["a"]), [write(tmp_path / "ref", ["a", "b"])])


def test_baseline_and_json(tmp_path):
    references = [f"Câu số {i} có một vài từ khác nhau ." for i in range(30)]
    hypotheses = write(tmp_path / "hyp", references)
    worse = write(tmp_path / "base", [line.replace("vài", "mấy") for line in references])
    arguments = ["--hypotheses", hypotheses, "--references", write(tmp_path / "ref", references)]
    runner = CliRunner()
    plain = runner.invoke(app, ["score", *map(str, arguments), "--json"])
    rows = json.loads(plain.stdout)["scores"]
    assert [set(row) for row in rows] == [{"name", "score", "signature"}] * 3
    paired = runner.invoke(app, ["score", *map(str, arguments), "--json", "--baseline", str(worse)])
    row = bleu(json.loads(paired.stdout)["scores"])
    assert row["score"] == pytest.approx(100) and row["baseline"] < 90
    assert row["p_value"] < 0.01
    assert "bs:1000|seed:" in row["signature"]
    printed = runner.invoke(app, ["score", *map(str, arguments), "--baseline", str(worse)])
    assert "p = 0.0" in printed.stdout and "nrefs:1" in printed.stdout


def test_each_score_is_that_of_the_command(tmp_path):
    hypotheses = write(
        tmp_path / "hyp", ["Con mèo ngủ trên ghế.", "Tôi quên mang ô.", "Vâng, đúng"]
    )
    references = write(tmp_path / "ref", [*REFERENCES, "Vâng, đúng vậy!"])
    command = [sys.executable, "-m", "sacrebleu", references, "-i", hypotheses, "-w", "6"]
    printed = subprocess.run(
        [*command, "-m", "bleu", "chrf", "ter"], capture_output=True, text=True, check=True
    ).stdout
    theirs = {row["name"]: row for row in json.loads(printed)}
    for row in score(hypotheses, [references]):
        assert row["score"] == pytest.approx(theirs[row["name"]]["score"], abs=1e-4)
        assert row["signature"] == theirs[row["name"]]["signature"]


def test_a05_whichever_side_is_decomposed(tmp_path):
    texts = ["Tôi rất thích món phở ở Hà Nội .", "Mẹ đi chợ ."]
    apart = write(tmp_path / "ref", [unicodedata.normalize("NFD", text) for text in texts])
    together = write(tmp_path / "hyp", texts)
    rows = {row["name"]: row["score"] for row in score(together, [apart])}
    assert rows == {"BLEU": pytest.approx(100), "chrF2": pytest.approx(100), "TER": 0}


@pytest.mark.parametrize(
    ("hypotheses", "message"),
    [(None, "hyp: No such file"), (b"a\n\xff\n", "hyp:2: not UTF-8"), (b"", "has 0")],
)
def test_faults_are_one_line_and_exit_1(tmp_path, hypotheses, message):
    if hypotheses is not None:
        (tmp_path / "hyp").write_bytes(hypotheses)
    references = write(tmp_path / "ref", ["a", "b"])
    line = ["score", f"--hypotheses={tmp_path / 'hyp'}", f"--references={references}"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 1
    assert message in result.output and len(result.output.strip().splitlines()) == 1
