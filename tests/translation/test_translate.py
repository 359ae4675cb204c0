import subprocess
import sys

import pytest
import torch
from fairseq.tasks.translation import TranslationTask
from typer.testing import CliRunner

from fairseq_plugins.errors import UserError
from fairseq_plugins.subwords import load_subwords
from translation.cli import app
from translation.prepare import prepare
from translation.translate import translate

SHORT = {"beam": 2, "max_len_b": 8, "cpu": True}


def test_a31_as_many_come_out_as_go_in_and_in_order(telling, corpus):
    lines = (corpus / "test.en").read_text().splitlines()
    assert [len(line.split()) for line in lines] == list(range(1, 14))
    lines = [lines[i * 5 % 13] for i in range(13)]  # not by length, as the batches are
    alone = [translate([telling], [line], **SHORT)[0] for line in lines]
    assert len(set(alone)) > 8  # or the order would not show
    assert translate([telling], lines, max_tokens=64, **SHORT) == alone
    assert translate([telling], lines, batch_size=2, **SHORT) == alone
    gaps = translate(
        [telling], [line for pair in zip(lines, [""] * 13, strict=True) for line in pair], **SHORT
    )
    assert gaps[::2] == alone and gaps[1::2] == [""] * 13


def test_empty_lines_stay_empty(checkpoint):
    results = translate([checkpoint], ["", "He eats rice.", " \t", "\u200b"], **SHORT)
    assert [bool(line) for line in results] == [False, True, False, False]
    assert translate([checkpoint], ["", ""], **SHORT) == ["", ""]
    assert translate([checkpoint], [], **SHORT) == []


def test_plain_fairseq_checkpoint_and_an_ensemble(checkpoint, plain_checkpoint):
    lines = ["He eats rice.", "We read a book."]
    assert len(translate([plain_checkpoint], lines, **SHORT)) == 2
    assert len(translate([checkpoint, plain_checkpoint], lines, **SHORT)) == 2


def test_sampling_is_repeatable_by_its_seed(checkpoint):
    lines = ["He eats rice."] * 3
    options = SHORT | {"sampling": True, "beam": 1}
    a, b, c = (translate([checkpoint], lines, seed=seed, **options) for seed in (1, 1, 2))
    assert a == b != c


def test_a_line_too_long_for_the_model_is_said(checkpoint, capsys):
    results = translate([checkpoint], ["He eats.", "rice " * 90], **SHORT)
    assert len(results) == 2 and results[1]
    assert "line 2 has" in capsys.readouterr().err


def test_a30_half_precision_on_a_cpu(checkpoint):
    with pytest.raises(UserError, match="--fp16 with --cpu"):
        translate([checkpoint], ["a"], cpu=True, fp16=True)


def test_data_folder_can_be_named(checkpoint, prepared, tmp_path):
    state = torch.load(checkpoint)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone" / "bin")
    moved = tmp_path / "moved.pt"
    torch.save(state, moved)
    with pytest.raises(UserError, match=r"gone.*--data"):
        translate([moved], ["He eats."], **SHORT)
    assert translate([moved], ["He eats."], data=prepared, **SHORT)


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_checkpoints_that_cannot_be_read(checkpoint, tmp_path, damage):
    path = tmp_path / "checkpoint.pt"
    if damage == "truncated":
        path.write_bytes(checkpoint.read_bytes()[:-2000])
    elif damage == "foreign":
        path.write_text("not a checkpoint")
    with pytest.raises(UserError, match=r"checkpoint\.pt: (no such|not a readable)") as refused:
        translate([path], ["a"], **SHORT)
    assert "\n" not in str(refused.value)


def test_command(checkpoint, tmp_path):
    source = tmp_path / "in.txt"
    source.write_bytes("\ufeffHe eats rice.\r\n\r\nWe read a book.".encode())
    output = tmp_path / "out.txt"
    arguments = ["--checkpoint", str(checkpoint), "--input", str(source), "--output", str(output)]
    arguments += ["--cpu", "--beam=2", "--max-len-b=8"]
    result = CliRunner().invoke(app, ["translate", *arguments])
    assert result.exit_code == 0, result.output
    lines = output.read_text().split("\n")
    assert len(lines) == 4 and lines[0] and not lines[1] and lines[2] and not lines[3]
    arguments[arguments.index("--output") + 1] = "-"
    printed = CliRunner().invoke(app, ["translate", *arguments])
    assert printed.stdout == output.read_text()


def test_reads_standard_input_and_says_what_is_wrong(tmp_path):
    code = "import fairseq_share; fairseq_share.main()"
    line = ["translation", "translate", "--checkpoint=none.pt", "--output=out.txt"]
    result = subprocess.run(
        [sys.executable, "-c", code, *line], input="a\n", capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "none.pt: no such checkpoint" in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_an_ensemble_is_none_of_its_members(telling, telling_too, corpus):
    lines = (corpus / "test.en").read_text().splitlines()
    a, b, both = (
        translate(models, lines, **SHORT)
        for models in ([telling], [telling_too], [telling, telling_too])
    )
    assert a != b and both not in (a, b)
    assert translate([telling, telling], lines, **SHORT) == a


def test_the_source_is_encoded_by_its_own_vocabulary(telling, corpus, tmp_path):
    sets = [corpus / name for name in ("train", "valid", "test")]
    prepare("en", "vi", sets[0], sets[1], [sets[2]], 300, tmp_path, separate=True)
    lines = (corpus / "test.en").read_text().splitlines()
    right = translate([telling], lines, data=tmp_path, **SHORT)
    (tmp_path / "spm.en.model").write_bytes((tmp_path / "spm.vi.model").read_bytes())
    assert translate([telling], lines, data=tmp_path, **SHORT) != right


def test_the_rest_of_a_long_line_is_left_out(telling, prepared, capsys, monkeypatch):
    original = TranslationTask.build_dataset_for_inference
    seen = []

    def record(task, sentences, lengths, **options):
        seen.extend(lengths)
        return original(task, sentences, lengths, **options)

    monkeypatch.setattr(TranslationTask, "build_dataset_for_inference", record)
    model = load_subwords(prepared, "en")
    pieces = model.encode("He eats rice. " * 30, out_type=str)
    assert len(pieces) > 60  # --max-source-positions of the fixture
    long = translate([telling], ["He eats rice. " * 30], **SHORT)
    assert f"line 1 has {len(pieces)} pieces and the model takes 59" in capsys.readouterr().err
    kept = model.decode(pieces[:59])
    assert model.encode(kept, out_type=str) == pieces[:59]
    assert translate([telling], [kept], **SHORT) == long
    assert seen == [60, 60]  # and the end of the sentence
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "not fairseq's"])
def test_checkpoints_that_cannot_be_read_with_data_named(checkpoint, prepared, tmp_path, damage):
    path = tmp_path / "checkpoint.pt"
    if damage == "truncated":
        path.write_bytes(checkpoint.read_bytes()[:-2000])
    elif damage == "text":
        path.write_text("not a checkpoint")
    elif damage == "not fairseq's":
        torch.save({"weights": torch.ones(2)}, path)
    with pytest.raises(UserError, match=r"checkpoint\.pt: (no such|not a readable)") as refused:
        translate([path], ["a"], data=prepared, **SHORT)
    assert "\n" not in str(refused.value)


def test_a_failure_writes_no_output(checkpoint, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"good\nb\xe9d\n")
    output = tmp_path / "out.txt"
    output.write_text("before")
    arguments = ["--input", str(tmp_path / "in.txt"), "--output", str(output), "--cpu"]
    result = CliRunner().invoke(app, ["translate", "--checkpoint", str(checkpoint), *arguments])
    assert result.exit_code == 1 and "in.txt:2: not UTF-8" in result.output
    assert output.read_text() == "before"
