"""Reading recipes: Hydra configurations that come with the package."""

import difflib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_plugins.errors import UserError

HERE = Path(__file__).parent
CONF = HERE / "conf"
OmegaConf.register_new_resolver("recipes", lambda name: str(HERE / name), replace=True)


def names() -> list[str]:
    """Return the recipes that come with the package, such as ``translation/demo``."""
    files = CONF.glob("*/*.yaml")
    return sorted(
        str(file.relative_to(CONF).with_suffix(""))
        for file in files
        if file.parent.name != "sharing"
    )


def load(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Return recipe *name* with *overrides* in place, in Hydra's syntax.

    ``key=value``, ``+key=value`` for a key that is not there, such as another test set, ``~key`` to
    leave one out.

    Raises:
        UserError: an unknown recipe or key (with the nearest one), or a value of another type.
    """
    if name not in names():
        raise UserError(f"unknown recipe {name!r}{_nearest(name, names())}")
    plain = _compose(name, [])
    known = dict(_leaves(plain))
    groups = {key.rpartition(".")[0] for key in known} | {"sharing"}
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not (equals or key.startswith("~")):
            raise UserError(f"{override!r}: settings are given as key=value")
        if not key.startswith(("+", "~")) and key not in known and key not in groups:
            raise UserError(f"unknown recipe key {key!r}{_nearest(key, known)}")
    cfg = _compose(name, overrides)
    for key, value in _leaves(cfg):
        default = known.get(key)
        allowed = (int, float) if isinstance(default, float) else type(default)
        if default is not None and value is not None and not isinstance(value, allowed):
            raise UserError(f"{key}={value!r}: wants {type(default).__name__}, as {default!r}")
    return cfg


def systems(name: str, overrides: Sequence[str] = ()) -> dict[str, DictConfig]:
    """Return system -> complete configuration, for every system of a recipe.

    ``sharing=NAME`` leaves one system; without it, ``systems`` says which.

    Raises:
        UserError: as :func:`load`; an unknown system.
    """
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("sharing=")]
    rest = [override for override in overrides if not override.startswith("sharing=")]
    known = sorted(file.stem for file in (CONF / "sharing").glob("*.yaml"))
    for system in chosen or (chosen := list(load(name, rest).systems)):
        if system not in known:
            raise UserError(f"unknown system {system!r}{_nearest(system, known)}: {known}")
    return {system: load(name, [*rest, f"sharing={system}"]) for system in chosen}


def _compose(name: str, overrides: Sequence[str]) -> DictConfig:
    try:
        # 1.1: a newer base would stop fairseq's own use of Hydra in this process
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r'\s*version_base="1.1" selects')
            context = initialize_config_dir(str(CONF), version_base="1.1")
        with context:
            return compose(name, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error


def _leaves(cfg: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key in cfg:
        value = cfg[key]
        if isinstance(value, DictConfig):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nearest(word: str, known) -> str:
    near = difflib.get_close_matches(word, list(known), 1, cutoff=0.3)
    return f": did you mean {near[0]!r}?" if near else ""
