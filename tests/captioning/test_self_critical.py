"""The criterion: advantage times log-probability of the model's own captions."""

from types import SimpleNamespace

import pytest
import torch

from captioning.ciderd import CiderD
from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.criterions.self_critical import SelfCriticalCriterion, caption_mask, draw
from fairseq_plugins.errors import UserError
from tests.captioning.test_ciderd import A2
from tests.captioning.test_model import batch, build

WORDS = 14
EOS, PAD = 2, 1


class Task:
    """Words are "4" and on; references are of three pictures."""

    def __init__(self, references=None):
        self.target_dictionary = nameless_dictionary(WORDS)
        given = references or {i: [f"{4 + i} 9 {5 + i}", f"{4 + i} 9"] for i in range(3)}
        self.scorers = {"train": CiderD(given, end=True), "valid": CiderD(given)}

    def references(self, split):
        return self.scorers[split]

    def caption(self, ids):
        return " ".join(str(i) for i in ids.tolist() if i not in (PAD, EOS))


def criterion(samples=4, baseline="samples", bleu_weight=0.0, length=6, task=None):
    return SelfCriticalCriterion(task or Task(), samples, baseline, bleu_weight, length)


def sample(split="train"):
    source = batch(lengths=(3, 3, 3), of=(0, 1, 2))
    return {"image_id": torch.tensor([0, 1, 2]), "split": split, "net_input": source}


def model(**options):
    return build(words=WORDS - 4, share_pattern="none", **options).train()


def test_a02_mask_ends_with_the_first_end_token():
    words = SimpleNamespace(eos=lambda: EOS, pad=lambda: PAD)
    ids = torch.tensor([[7, 9, EOS, EOS, PAD], [7, 9, 8, 6, 5], [EOS, PAD, PAD, PAD, PAD]])
    assert caption_mask(ids, words).int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0],
    ]


class TestA07:
    """Sampled tokens are scored again with gradients."""

    def step(self, monkeypatch, sampled, greedy):
        net, loss = model(), criterion(samples=1, baseline="greedy")
        rewards = iter([sampled, greedy])
        monkeypatch.setattr(loss, "reward", lambda s, i, t: torch.full((len(i),), next(rewards)))
        drawn = []
        original = draw
        monkeypatch.setattr(
            "fairseq_plugins.criterions.self_critical.draw",
            lambda *a, **k: drawn.append(original(*a, **k)) or drawn[-1],
        )
        value, size, _ = loss(net, sample())
        value.backward()
        return net, loss, drawn[0], value / size

    def test_a07_gradients_raise_the_sample(self, monkeypatch):
        net, loss, tokens, _ = self.step(monkeypatch, 2.0, 1.0)
        grads = [p.grad for p in net.parameters()]
        assert sum(float(g.abs().sum()) for g in grads) > 0
        source = {k: v for k, v in sample()["net_input"].items() if k in ("src_tokens", "cells")}

        def likelihood():
            with torch.no_grad():
                mask = caption_mask(tokens, loss.task.target_dictionary)
                return (loss.log_probabilities(net.eval(), source, tokens) * mask).sum()

        before = likelihood()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 1e-3 * parameter.grad
        assert likelihood() > before

    def test_a07_equal_rewards_change_nothing(self, monkeypatch):
        net, *_ = self.step(monkeypatch, 2.0, 2.0)
        assert all((p.grad == 0).all() for p in net.parameters())


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
@pytest.mark.parametrize("source", ["stored", "veps"])
def test_training_raises_the_reward(baseline, source):
    torch.manual_seed(2)
    net = model(weight_source=source, factor_dim=8 if source == "veps" else 0)
    loss = criterion(samples=16, baseline=baseline)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    rewards = []
    for _ in range(60):
        value, size, log = loss(net, sample())
        (value / size).backward()
        optimizer.step()
        optimizer.zero_grad()
        rewards.append(log["reward"] / log["samples"])
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5])


def test_what_is_logged():
    net, loss = model(), criterion()
    _, size, log = loss(net, sample())
    assert log["samples"] == 12 and 12 <= size == log["sample_size"] <= 12 * 6
    assert log["length"] == size and 0 <= log["no_end"] <= 12
    assert log["baseline"] == pytest.approx(log["reward"])  # the mean of means
    _, size, log = loss(net.eval(), sample("valid"))
    assert size == 3 and log["loss"] == -log["reward"]


def test_samples_of_a_picture_are_its_own():
    """Row c * pictures + i is picture i's; the same draw for each gives the greedy caption."""
    net = model().eval()
    source = {k: v for k, v in sample()["net_input"].items() if k in ("src_tokens", "cells")}
    greedy = draw(net, source, 2, 5, [0, 1, 3], greedy=True)
    assert torch.equal(greedy[:3], greedy[3:])
    assert not torch.isin(greedy, torch.tensor([0, 3])).any()


def test_drawn_log_probabilities_are_the_policys():
    """The teacher-forced pass gives what step-by-step sampling drew from."""
    net, loss = model().eval(), criterion()
    source = {k: v for k, v in sample()["net_input"].items() if k in ("src_tokens", "cells")}
    tokens = torch.tensor([[6, EOS], [7, EOS], [8, EOS]])
    with torch.no_grad():
        given = loss.log_probabilities(net, source, tokens).sum(1).exp()
        torch.manual_seed(1)
        drawn = draw(net, source, 4000, 2, loss._forbidden())
    for image in range(3):
        mine = drawn[image::3]
        share = (mine == tokens[image]).all(1).float().mean()
        assert float(share) == pytest.approx(float(given[image]), abs=0.006)


def test_a08_the_reward_is_in_the_evaluations_tokens(tmp_path):
    from argparse import Namespace

    from fairseq_plugins.tasks.captioning import CaptioningTask

    words = ["▁A", "▁sk", "ate", "board", "er", "."]
    (tmp_path / "dict.txt").write_text("".join(f"{w} 1\n" for w in words))
    task = CaptioningTask(Namespace(data=str(tmp_path)))
    task.subwords = SimpleNamespace(decode=lambda p: "".join(p).replace("▁", " ").strip())
    ids = torch.tensor([task.words.index(w) for w in words] + [task.words.eos()])
    assert task.caption(ids) == "a skateboarder"
    scorer = CiderD({**A2, 5: ["a skateboarder"]}, end=True)
    assert scorer.score([5], [task.caption(ids)]) == scorer.score([5], ["a skateboarder"])


def test_bleu_in_the_reward():
    net = model()
    rewards = [criterion(bleu_weight=w) for w in (0.0, 1.0)]
    tokens = torch.tensor([[4, 9, 5, EOS], [5, 9, 6, EOS], [6, 9, 9, EOS]])
    plain, both = (loss.reward("train", torch.arange(3), tokens) for loss in rewards)
    assert both[0] - plain[0] == pytest.approx(1, abs=1e-3)
    assert both[2] - plain[2] < 0.5
    assert net is not None


def test_one_sample_has_no_others():
    with pytest.raises(UserError, match="--samples 1 --baseline samples"):
        criterion(samples=1)
