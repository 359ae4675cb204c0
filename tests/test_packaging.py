"""The package as a user installs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package's wheel installed, and another folder to run from."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", folder / "dist", ROOT]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site


def run(site, code, *arguments, cwd, check=True):
    """Run *code* with the installed package in front of the checkout's."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=check,
        timeout=200,
    )


SHARE = "import fairseq_share; fairseq_share.main()"
TRAIN = "from fairseq_cli.train import cli_main; cli_main()"


def test_works_from_a_wheel_in_another_folder(installed, tmp_path):
    user_dir = run(installed, SHARE, "user-dir", cwd=tmp_path).stdout.strip()
    assert user_dir == str(installed / "fairseq_plugins")
    listed = json.loads(run(installed, SHARE, "recipe", "list", "--json", cwd=tmp_path).stdout)
    assert "translation/demo" in [recipe["name"] for recipe in listed["recipes"]]
    shown = run(installed, SHARE, "recipe", "show", "translation/demo", cwd=tmp_path).stdout
    assert f"train: {installed}/recipes/demo_data/train" in shown
    assert (installed / "recipes" / "demo_data" / "train.vi").is_file()
    assert list((installed / "recipes" / "templates").iterdir())


def test_a18_a22_every_form_of_user_dir_lists_the_architectures(installed, tmp_path):
    """fairseq's --help leaves the names out; it lists them for one that does not exist."""
    (tmp_path / "link").symlink_to(installed)
    package = installed / "fairseq_plugins"
    for form in ("link/fairseq_plugins", "link/fairseq_plugins/", package, f"{package}/"):
        arguments = ("data", "--user-dir", form, "--arch", "?")
        listed = run(installed, TRAIN, *arguments, cwd=tmp_path, check=False).stderr
        for name in ("share_transformer", "share_transformer_tiny", "share_transformer_base"):
            assert f"'{name}'" in listed or f" {name}," in listed
    run(installed, TRAIN, "--user-dir", package, "--help", cwd=tmp_path)


def test_a22_importing_the_package_first_is_harmless(installed, tmp_path):
    code = f"import fairseq_plugins; {TRAIN}"
    for form in (installed / "fairseq_plugins", f"{installed}/fairseq_plugins/"):
        run(installed, code, "--user-dir", form, "--help", cwd=tmp_path)


def test_help_imports_neither_torch_nor_fairseq(installed, tmp_path):
    code = """import sys, fairseq_share
try:
    fairseq_share.main()
except SystemExit as end:
    assert end.code == 0
assert not {"torch", "fairseq", "sacrebleu", "hydra"} & set(sys.modules)"""
    for command in ([], ["translation"], ["recipe"], ["translation", "prepare"], ["sizes"]):
        assert "Usage" in run(installed, code, *command, "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize("target", ["install", "test"])
def test_another_python_gets_one_clear_line(target):
    command = ["make", "-s", target, "PYTHON=", "INSTALLED=.venv/.none"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode != 0
    assert "needs Python 3.11 or 3.12" in result.stderr.splitlines()[0]


def test_torch_can_come_from_another_index():
    command = ["make", "-n", "install", "TORCH_INDEX=file:///torch", "INSTALLED=.venv/.none"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    (torch_line,) = [i for i, line in enumerate(lines) if "--index-url file:///torch torch" in line]
    (all_line,) = [i for i, line in enumerate(lines) if "-e '.[dev]'" in line]
    assert torch_line < all_line
