"""Recipes: settings, the one training line, stages."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from omegaconf import OmegaConf

from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.errors import UserError
from fairseq_plugins.models.share_config import ShareTransformerConfig
from fairseq_plugins.models.visual import VisualSource
from fairseq_plugins.sizes import count_parameters
from recipes import config, training
from recipes.demo_data import grammar
from recipes.demo_data.grammar import SIZES, held_out
from recipes.tasks import TASKS
from tests.helpers import share
from translation.cli import paths

TINY = [
    "train.max_update=2",
    "train.max_tokens=256",
    "train.save_interval_updates=1",
    "train.validate_interval_updates=2",
    "average=2",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
]


def render(cfg, out, phase=""):
    task = TASKS[cfg.task](cfg, out)
    return training.arguments(cfg, task, out, training.phases(cfg)[phase])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The first sentences of the demo's corpus, with relative paths to be reached by."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, count in (("train", 300), ("valid", 13), ("test", 13)):
        for lang in ("en", "vi"):
            lines = (config.HERE / "demo_data" / f"{name}.{lang}").read_text().splitlines()
            (folder / f"{name}.{lang}").write_text("".join(s + "\n" for s in lines[:count]))
    return folder


def data(prefix="."):
    return [
        f"data.train={prefix}/train",
        f"data.valid={prefix}/valid",
        f"data.tests.test={prefix}/test",
    ]


class TestConfig:
    @pytest.mark.parametrize("name", config.names())
    @pytest.mark.parametrize("system", ["vanilla", "simple_share", "eps", "veps"])
    def test_a15_line_and_recipe_build_the_same_model(self, name, system, tmp_path):
        cfg = config.systems(name, [f"sharing={system}"])[system]
        line = render(cfg, tmp_path)
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(parser, line)
        from_line = convert_namespace_to_omegaconf(args)
        given = [OmegaConf.to_container(c, resolve=True) for c in (cfg.model, cfg.sharing.options)]
        wanted = OmegaConf.merge(OmegaConf.structured(ShareTransformerConfig), *given)
        got = OmegaConf.to_container(from_line.model, enum_to_str=True)
        wanted = OmegaConf.to_container(wanted, enum_to_str=True)
        assert {k: got[k] for k in wanted if k != "_name"} == {
            k: v for k, v in wanted.items() if k != "_name"
        }
        for key, value in OmegaConf.to_container(cfg.train, resolve=True).items():
            named = [from_line[key]["_name"]] if key in from_line else []
            groups = [group for group in from_line.values() if hasattr(group, "keys")]
            found = named + [group[key] for group in groups if key in group]
            assert any(str(value) == str(v).strip("[]") for v in found), key
        flags = [part for part in line if part.startswith("--")]
        assert len(flags) == len(set(flags))
        words = nameless_dictionary(cfg.data.vocab_size)
        task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
        if cfg.task == "captioning":
            task.visual_source = VisualSource(channels=64, grid=(7, 7))
        sizes = {
            count_parameters(build_model(model_cfg, task))
            for model_cfg in (
                from_line.model,
                OmegaConf.create(wanted | {"_name": "share_transformer"}),
            )
        }
        assert len(sizes) == 1

    def test_a31_every_line_asks_for_batches_of_any_size(self, tmp_path):
        for name in config.names():
            for cfg in config.systems(name).values():
                for phase in training.phases(cfg):
                    line = render(cfg, tmp_path, phase)
                    assert line[line.index("--required-batch-size-multiple") + 1] == "1"

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            (
                "train.max_updates=1",
                "unknown recipe key 'train.max_updates': did you mean 'train.max_update'",
            ),
            ("systems=[esp]", "unknown system 'esp': did you mean 'eps'"),
            ("sharing=esp", "unknown system 'esp': did you mean 'eps'"),
            ("train.max_update=many", "train.max_update='many': wants int"),
            ("average", "key=value"),
            ("train.seed=[", "translation/demo: "),
        ],
    )
    def test_faults_are_named(self, override, message):
        with pytest.raises(UserError) as refused:
            config.systems("translation/demo", [override])
        assert message in str(refused.value)

    def test_too_few_checkpoints_to_average(self):
        for name, asked in (("train", "average=30"), ("self_critical", "average=6")):
            (cfg,) = config.systems("captioning/demo", [asked, "systems=[veps]"]).values()
            with pytest.raises(UserError, match=f"{asked}: {name} writes .* lower average"):
                training.phases(cfg)
        by_epoch = ["train.save_interval_updates=0", "self_critical.save_interval_updates=0"]
        (cfg,) = config.systems("captioning/demo", [*by_epoch, "systems=[veps]"]).values()
        assert set(training.phases(cfg)) == {"", "self_critical"}

    def test_unknown_recipe(self):
        with pytest.raises(UserError, match="did you mean 'translation/demo'"):
            config.load("translation/dmeo")

    @pytest.mark.parametrize("precision", ["fp16", "bf16"])
    def test_a30_half_precision_on_a_cpu(self, precision, tmp_path):
        cfg = config.load("translation/demo", [f"precision={precision}"])
        with pytest.raises(UserError, match=f"--{precision} with --cpu"):
            render(cfg, tmp_path)


class TestCommand:
    def test_list_and_show(self):
        listed = json.loads(share("recipe", "list", "--json").stdout)["recipes"]
        assert [set(recipe) for recipe in listed] == [{"name", "task", "summary"}] * len(listed)
        assert "translation/demo" in [recipe["name"] for recipe in listed]
        shown = share("recipe", "show", "translation/demo", "train.seed=7").stdout
        lines = [line for line in shown.splitlines() if line.startswith("OMP_NUM_THREADS=1 ")]
        assert len(lines) == 3
        assert "--seed 7" in lines[0] and "--weight-source eps" in lines[2]
        assert "fairseq-train" in shlex.split(lines[0])

    def test_a29_a30_a31_run_from_another_folder_skip_and_redo(self, corpus, tmp_path):
        arguments = [
            "recipe",
            "run",
            "translation/demo",
            *TINY,
            *data(),
            "systems=[eps]",
            "out=out",
        ]
        arguments.append("data.vocab_size=1000")
        first = share(
            *arguments,
            "model.encoder_ffn_embed_dim=8",
            "model.decoder_ffn_embed_dim=8",
            "model.encoder_embed_dim=32",
            "model.decoder_embed_dim=32",
            "--json",
            cwd=corpus,
        )
        results = json.loads(first.stdout)
        system = results["systems"][0]
        assert system["learning"]["updates"] == 2
        assert {row["name"] for row in system["scores"]["test"]} == {"BLEU", "chrF2", "TER"}
        assert len((corpus / "out" / "eps" / "test.vi").read_text().splitlines()) == 13
        page = (corpus / "out" / "report.html").read_text()
        assert "column of 32" in page and "http-equiv" not in page and "src=" not in page

        log = corpus / "out" / "eps" / "train.log"
        before = log.stat().st_mtime_ns
        sizes = [
            "model.encoder_ffn_embed_dim=8",
            "model.decoder_ffn_embed_dim=8",
            "model.encoder_embed_dim=32",
            "model.decoder_embed_dim=32",
        ]
        again = json.loads(share(*arguments, *sizes, "decode.beam=2", "--json", cwd=corpus).stdout)
        assert log.stat().st_mtime_ns == before  # decoded again, not trained again
        assert again["systems"][0]["scores"].keys() == system["scores"].keys()
        share(*arguments, *sizes, "train.lr=0.001", cwd=corpus)
        assert log.stat().st_mtime_ns != before
        assert (corpus / "out" / "eps" / "checkpoints.old" / "checkpoint_last.pt").is_file()

    def test_wrong_path_is_shown_whole(self, corpus):
        result = share(
            "recipe",
            "run",
            "translation/demo",
            "data.train=nowhere/train",
            "out=o",
            cwd=corpus,
            check=False,
        )
        assert result.returncode == 1
        assert str(corpus / "nowhere" / "train.en") in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr

    def test_training_that_stops_is_one_line(self, corpus):
        result = share(
            "recipe",
            "run",
            "translation/demo",
            *data(),
            *TINY,
            "systems=[eps]",
            "out=wide",
            "model.encoder_ffn_embed_dim=4096",
            "model.decoder_ffn_embed_dim=4096",
            cwd=corpus,
            check=False,
        )
        assert result.returncode == 1
        last = result.stderr.strip().splitlines()[-1]
        assert "eps: training stopped: the layer weights need" in last and "train.log" in last

    def test_killed_training_goes_on(self, corpus):
        arguments = [
            "recipe",
            "run",
            "translation/demo",
            *data(),
            "systems=[vanilla]",
            "out=killed",
        ]
        arguments += [*TINY, "train.max_update=60", "train.keep_interval_updates=60"]
        code = "import fairseq_share; fairseq_share.main()"
        environment = os.environ | {"PYTHONPATH": str(Path(config.HERE).parent)}
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=corpus,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        checkpoints = corpus / "killed" / "vanilla" / "checkpoints"
        for _ in range(600):
            if len(list(checkpoints.glob("checkpoint_*_*.pt"))) > 3:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (corpus / "killed" / "results.json").exists()
        share(*arguments, cwd=corpus)
        log = (corpus / "killed" / "vanilla" / "train.log").read_text()
        assert "Loaded checkpoint" in log
        assert json.loads((corpus / "killed" / "results.json").read_text())["systems"]

    def test_a30_en_vi_runs_on_a_cpu(self, corpus):
        """The recipe's sizes, on a corpus too small for its vocabulary."""
        more = [
            "~data.tests.tst2013",
            "+data.tests.test=test",
            "data.train=train",
            "data.valid=valid",
            "decode.beam=1",
        ]
        more += ["systems=[simple_share]", "out=en_vi", *TINY]
        result = share("recipe", "run", "translation/en_vi", *more, "--json", cwd=corpus)
        (system,) = json.loads(result.stdout)["systems"]
        assert system["learning"]["updates"] == 2

    def test_a_truncated_checkpoint_is_replaced_by_the_newest_whole_one(self, tmp_path, capsys):
        for name in ("checkpoint1.pt", "checkpoint_2_40.pt"):
            torch.save({"model": {"name": name}, "cfg": {}}, tmp_path / name)
        whole = (tmp_path / "checkpoint1.pt").read_bytes()
        os.utime(tmp_path / "checkpoint1.pt", (1, 1))
        last = tmp_path / "checkpoint_last.pt"
        last.write_bytes(whole[:-40])
        training.recover(tmp_path)
        assert torch.load(last)["model"]["name"] == "checkpoint_2_40.pt"
        assert "truncated" in capsys.readouterr().err
        last.write_bytes(whole)
        training.recover(tmp_path)
        assert last.read_bytes() == whole

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to be full")
    def test_a_full_disk_is_one_line(self, tmp_path):
        torch.save({"model": {"weight": torch.ones(9)}, "cfg": {}}, tmp_path / "checkpoint1.pt")
        line = ["average", f"--inputs={tmp_path}", "--last=1", "--output=/dev/full"]
        result = share(*line, check=False)
        assert result.returncode == 1
        assert "No space left on device" in result.stderr.strip().splitlines()[-1]
        assert "Traceback" not in result.stderr


class TestDemoData:
    def test_files_are_the_grammars(self, tmp_path):
        grammar.write(tmp_path)
        for file in tmp_path.iterdir():
            assert file.read_bytes() == (config.HERE / "demo_data" / file.name).read_bytes()
        assert len(list(tmp_path.iterdir())) == 6

    def test_held_out_combinations_are_not_in_training(self):
        sets = grammar.split()
        assert {name: len(pairs) for name, pairs in sets.items()} == SIZES
        seen = {english: c for english, _, c in take(grammar.Grammar(1).sentences(), 60000)}
        for name, pairs in sets.items():
            for english, _ in pairs:
                assert any(map(held_out, seen[english])) is (name != "train")
        english = [pair[0] for pairs in sets.values() for pair in pairs]
        assert len(english) == len(set(english))


def take(sentences, count):
    return [next(sentences) for _ in range(count)]


def test_paths():
    assert paths("a,b/c") == [Path("a"), Path("b/c")]
