import json
import os
import unicodedata

import pytest
from fairseq.data import Dictionary, data_utils
from typer.testing import CliRunner

from fairseq_plugins.errors import UserError
from fairseq_plugins.subwords import learn_subwords, load_subwords
from tests.helpers import fairseq
from translation import prepare as module
from translation.cli import app
from translation.prepare import prepare


def run(corpus, out, vocab_size=300, **options):
    sets = [corpus / name for name in ("train", "valid", "test")]
    return prepare("en", "vi", sets[0], sets[1], [sets[2]], vocab_size, out, **options)


def copy(corpus, folder, **changes):
    for path in corpus.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, content in changes.items():
        target = folder / name.replace("_", ".")
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_rows_are_as_asked(prepared):
    words = Dictionary.load(str(prepared / "bin" / "dict.en.txt"))
    assert len(words) == 300
    assert (prepared / "bin" / "dict.vi.txt").read_text() == (
        prepared / "bin" / "dict.en.txt"
    ).read_text()


def test_a25_dictionary_of_a_subword_model(prepared):
    model = load_subwords(prepared, "en")
    lines = (prepared / "bin" / "dict.en.txt").read_text().splitlines()
    assert len(lines) == model.get_piece_size() - 3
    assert [line.split(" ")[0] for line in lines] == [
        model.id_to_piece(i) for i in range(3, model.get_piece_size())
    ]
    assert all(len(line.split(" ")) == 2 and int(line.split(" ")[1]) for line in lines)
    words = Dictionary.load(str(prepared / "bin" / "dict.vi.txt"))
    for lang in ("en", "vi"):
        path = str(prepared / "bin" / f"train.en-vi.{lang}")
        ids = data_utils.load_indexed_dataset(path, words)
        text = (prepared / "text" / f"train.{lang}").read_text().splitlines()
        for sentence, line in zip(ids, text, strict=True):
            assert words.unk() not in sentence
            pieces = [words[i] for i in sentence[:-1].tolist()]
            assert model.decode(pieces) == line


def test_a_piece_with_the_name_of_a_special_entry(corpus, tmp_path):
    text = (corpus / "train.en").read_text().replace("my", "<pad>")
    folder = copy(corpus, tmp_path, train_en=text)
    run(folder, tmp_path / "out")
    words = Dictionary.load(str(tmp_path / "out" / "bin" / "dict.en.txt"))
    assert len(words) == 300 and words.pad() == 1


def test_the_same_data_as_fairseq_preprocess(prepared, tmp_path):
    model = load_subwords(prepared, "en")
    for lang in ("en", "vi"):
        text = (prepared / "text" / f"train.{lang}").read_text().splitlines()
        pieces = [" ".join(model.encode(line, out_type=str)) for line in text]
        (tmp_path / f"train.{lang}").write_text("".join(line + "\n" for line in pieces))
    dictionary = prepared / "bin" / "dict.en.txt"
    line = ["--source-lang=en", "--target-lang=vi", f"--trainpref={tmp_path / 'train'}"]
    line += [f"--srcdict={dictionary}", "--joined-dictionary", f"--destdir={tmp_path / 'bin'}"]
    fairseq("preprocess", *line)
    for lang in ("en", "vi"):
        for kind in ("bin", "idx"):
            name = f"train.en-vi.{lang}.{kind}"
            assert (tmp_path / "bin" / name).read_bytes() == (prepared / "bin" / name).read_bytes()


def test_references_are_the_raw_text(prepared, corpus):
    for name in ("valid", "test"):
        reference = prepared / "references" / f"{name}.vi"
        assert reference.read_text() == (corpus / f"{name}.vi").read_text()


def test_a09_odd_separators_shift_nothing(corpus, tmp_path):
    en, vi = (
        "I eat.\nIt is fine today.\nGoodbye.\n",
        "Tôi ăn.\nhôm nay\rtrời đẹp\u2028\nTạm biệt.\n",
    )
    folder = copy(corpus, tmp_path, valid_en=en, valid_vi=vi)
    run(folder, tmp_path / "out")
    lines = (tmp_path / "out" / "references" / "valid.vi").read_text().split("\n")
    assert lines == ["Tôi ăn.", "hôm nay trời đẹp", "Tạm biệt.", ""]
    words = Dictionary.load(str(tmp_path / "out" / "bin" / "dict.vi.txt"))
    for lang in ("en", "vi"):
        path = str(tmp_path / "out" / "bin" / f"valid.en-vi.{lang}")
        assert len(data_utils.load_indexed_dataset(path, words)) == 3


def test_a05_decomposed_text_is_composed(corpus, tmp_path):
    composed = (corpus / "train.vi").read_text()
    folder = copy(corpus, tmp_path, train_vi=unicodedata.normalize("NFD", composed))
    run(folder, tmp_path / "out")
    assert (tmp_path / "out" / "text" / "train.vi").read_text() == composed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_vi": "một\n"}, r"train\.en has 120, .*train\.vi has 1"),
        ({"train_vi": b"\xff\n"}, r"train\.vi:1: not UTF-8"),
        ({"train_en": "", "train_vi": ""}, "no sentence pair"),
        ({"valid_en": "a\n\n", "valid_vi": "a\nb\n"}, r"valid\.en:2: an empty line"),
        ({"test_en": "a\nb\nc\n", "test_vi": "a\nb\n \u200b\n"}, r"test\.vi:3: an empty line"),
        ({"test_en": "", "test_vi": ""}, r"test\.en, .*test\.vi: no sentence pair"),
    ],
)
def test_faults_leave_nothing_half_written(corpus, tmp_path, changes, message):
    folder = copy(corpus, tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_missing_file_is_named(corpus, tmp_path):
    with pytest.raises(UserError, match=r"none/train\.en: No such file"):
        prepare("en", "vi", tmp_path / "none/train", corpus / "valid", [], 300, tmp_path / "out")


def test_training_pairs_left_out_are_counted(corpus, tmp_path):
    en = "a b c d e f g h\nshort\n\nsame here\n"
    vi = "a\nngắn\ntrống\nnhư nhau\n"
    folder = copy(corpus, tmp_path, train_en=en * 30, train_vi=vi * 30)
    manifest = run(folder, tmp_path / "out", 80, max_length=6)
    assert manifest["sets"]["train"]["left_out"] == {"too long": 30, "empty": 30}
    manifest = run(folder, tmp_path / "out", 80, max_ratio=3.0)
    assert manifest["sets"]["train"]["left_out"] == {"of unlike length": 30, "empty": 30}
    assert manifest["sets"]["train"]["lines"] == 60
    assert (tmp_path / "out" / "text" / "train.en").read_text() == "short\nsame here\n" * 30


def test_a26_a_vocabulary_too_large_for_the_data(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("Tôi yêu em.\nEm yêu tôi.\nMẹ đi chợ.\nBố ở nhà.\n")
    model = learn_subwords([text], 8000)
    warning = capsys.readouterr().err
    path = tmp_path / "spm.model"
    path.write_bytes(model)
    actual = load_subwords(tmp_path, "vi").get_piece_size() + 1
    assert f"8000 -> {actual}" in warning and actual < 100


def test_a_vocabulary_too_small_for_the_characters(corpus, tmp_path):
    with pytest.raises(UserError, match=r"--vocab-size 20 .*(smaller|required)"):
        run(corpus, tmp_path / "out", 20)


def test_separate_vocabularies(corpus, tmp_path):
    run(corpus, tmp_path, 200, separate=True)
    assert not (tmp_path / "spm.model").exists()
    sizes = {lang: load_subwords(tmp_path, lang).get_piece_size() for lang in ("en", "vi")}
    assert sizes == {"en": 199, "vi": 199}
    assert (tmp_path / "bin" / "dict.en.txt").read_text() != (
        tmp_path / "bin" / "dict.vi.txt"
    ).read_text()


def test_finished_stages_are_skipped_and_redone_on_a_change(corpus, tmp_path, monkeypatch):
    folder = copy(corpus, tmp_path)
    run(folder, tmp_path / "out")
    done = []
    for stage in ("_clean_all", "learn_subwords", "binarise"):
        original = getattr(module, stage)

        def record(*arguments, stage=stage, original=original):
            done.append(stage)
            return original(*arguments)

        monkeypatch.setattr(module, stage, record)
    run(folder, tmp_path / "out")
    assert done == []
    run(folder, tmp_path / "out", 280)
    assert set(done) == {"learn_subwords", "binarise"}
    done.clear()
    (folder / "test.vi").write_text((folder / "test.vi").read_text().replace(".", "!"))
    run(folder, tmp_path / "out", 280)
    assert set(done) == {"_clean_all", "learn_subwords", "binarise"}


def test_an_interrupt_is_resumed(corpus, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "binarise", stop)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "bin").exists()
    assert set(json.loads((tmp_path / "manifest.json").read_text())["stages"]) == {
        "clean",
        "subword",
    }
    run(corpus, tmp_path)
    assert (tmp_path / "bin" / "train.en-vi.vi.idx").is_file()


def test_windows_files_are_read_as_unix_ones(corpus, prepared, tmp_path):
    for path in corpus.iterdir():
        text = "\ufeff" + path.read_text().replace("\n", "\r\n")
        (tmp_path / path.name).write_bytes(text.encode())
    run(tmp_path, tmp_path / "out")
    for folder in ("text", "references", "bin"):
        names = os.listdir(prepared / folder)
        assert sorted(names) == sorted(os.listdir(tmp_path / "out" / folder))
        for name in names:
            ours = (tmp_path / "out" / folder / name).read_bytes()
            assert ours == (prepared / folder / name).read_bytes(), name


def test_a26_prepare_goes_on_with_what_it_got(corpus, tmp_path, capsys):
    vi = "Tôi yêu em.\nEm yêu tôi.\nMẹ đi chợ.\nBố ở nhà.\n"
    folder = copy(corpus, tmp_path, train_en=vi, train_vi=vi)
    manifest = run(folder, tmp_path / "out", 8000)
    rows = len(Dictionary.load(str(tmp_path / "out" / "bin" / "dict.vi.txt")))
    assert manifest["vocab_actual"] == rows < 100
    assert f"8000 -> {rows}" in capsys.readouterr().err


def test_a29_relative_paths_are_of_the_working_folder(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(copy(corpus, tmp_path))
    prepare("en", "vi", "train", "valid", ["test"], 300, "out")
    assert (tmp_path / "out" / "bin" / "dict.en.txt").is_file()
    with pytest.raises(UserError, match=rf"{tmp_path}/away/train\.en: No such file"):
        prepare("en", "vi", "away/train", "valid", ["test"], 300, "out")


def test_joined_after_separate_is_joined(corpus, tmp_path):
    run(corpus, tmp_path, 200, separate=True)
    run(corpus, tmp_path, 200)
    en, vi = ((tmp_path / "bin" / f"dict.{lang}.txt").read_text() for lang in ("en", "vi"))
    assert en == vi
    assert [path.name for path in tmp_path.glob("spm*")] == ["spm.model"]


def test_vocabularies_of_a_failed_run_are_not_left(corpus, tmp_path):
    text = (corpus / "train.en").read_text().lower()  # fewer characters than Vietnamese
    folder = copy(corpus, tmp_path, train_en=text)
    out = tmp_path / "out"
    run(folder, out, 200, separate=True)
    before = {path.name: path.read_bytes() for path in out.glob("spm*")}
    with pytest.raises(UserError, match="--vocab-size 80 "):
        run(folder, out, 80, separate=True)
    assert {path.name: path.read_bytes() for path in out.glob("spm*")} == before


def test_a_failed_redo_keeps_the_old_data(corpus, prepared, tmp_path, monkeypatch):
    run(corpus, tmp_path)

    def half(lines, model, rows, path):
        path.with_suffix(".bin").write_text("half")
        raise RuntimeError("stopped")

    monkeypatch.setattr(module, "binarise", half)
    with pytest.raises(RuntimeError, match="stopped"):
        run(corpus, tmp_path, 280)
    names = os.listdir(prepared / "bin")
    assert sorted(os.listdir(tmp_path / "bin")) == sorted(names)
    for name in names:
        assert (tmp_path / "bin" / name).read_bytes() == (prepared / "bin" / name).read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
    monkeypatch.undo()
    run(corpus, tmp_path, 280)
    assert len(Dictionary.load(str(tmp_path / "bin" / "dict.en.txt"))) == 280


def test_command(corpus, tmp_path):
    line = ["prepare", "--source-lang=en", "--target-lang=vi", f"--train={corpus / 'train'}"]
    line += [f"--valid={corpus / 'valid'}", f"--test={corpus / 'test'},{corpus / 'valid'}"]
    line += [f"--out={tmp_path / 'out'}"]
    done = CliRunner().invoke(app, [*line, "--vocab-size=300", "--json"])
    assert done.exit_code == 0, done.output
    manifest = json.loads(done.stdout)
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    lines = {name: facts["lines"] for name, facts in manifest["sets"].items()}
    assert lines == {"train": 120, "valid": 13, "test": 13, "test1": 13}
    assert manifest["vocab_actual"] == 300
    assert CliRunner().invoke(app, [*line, "--vocab-size=7"]).exit_code == 2
    failed = CliRunner().invoke(app, [*line, "--vocab-size=20"])
    assert failed.exit_code == 1 and "--vocab-size 20" in failed.output


def test_an_unknown_kind_of_subword_model(corpus, tmp_path):
    with pytest.raises(UserError, match=r"model.type.*syllable|syllable.*model.type"):
        run(corpus, tmp_path, model_type="syllable")


def test_a_folder_that_is_not_ours_is_left_alone(corpus, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").touch()
    with pytest.raises(UserError, match=r"has a bin of its own.*--out"):
        prepare("en", "vi", corpus / "train", corpus / "valid", [corpus / "test"], 300, tmp_path)
    assert (tmp_path / "bin" / "tool").exists()


@pytest.mark.parametrize(
    ("stage", "change"), [("clean", {"max_length": 6}), ("subword", {"vocab_size": 280})]
)
def test_old_settings_after_an_interrupted_change(
    corpus, prepared, tmp_path, monkeypatch, stage, change
):
    run(corpus, tmp_path)
    finish = module.Stages.finish

    def stop(self, name, *arguments, **facts):
        if name == stage:
            raise KeyboardInterrupt
        finish(self, name, *arguments, **facts)

    monkeypatch.setattr(module.Stages, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path, **change)
    monkeypatch.undo()
    run(corpus, tmp_path)
    rows = len(Dictionary.load(str(tmp_path / "bin" / "dict.en.txt")))
    assert load_subwords(tmp_path, "en").get_piece_size() + 1 == rows == 300
    text = (tmp_path / "text" / "train.en").read_text()
    assert text == (prepared / "text" / "train.en").read_text()
