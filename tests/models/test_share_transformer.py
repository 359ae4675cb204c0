"""The model in this process: sharing, sizes, decoding, refusals."""

import copy
import io
import pickle
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator

from fairseq_plugins import precision
from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.errors import UserError
from fairseq_plugins.models.share_config import ShareTransformerConfig, transformer_config
from fairseq_plugins.sizes import count_as_if_unshared, count_parameters
from tests.helpers import KINDS, SMALL, build
from tests.helpers import batch as make_batch

every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def decode_step_by_step(model, encoded, target, reorder_at=None):
    state = {}
    steps = []
    for length in range(1, target.shape[1] + 1):
        if length == reorder_at:  # the two sentences swap places and back, as in a beam
            order = torch.tensor([1, 0])
            model.decoder.reorder_incremental_state_scripting(state, order)
            model.decoder.reorder_incremental_state_scripting(state, order)
        steps.append(model.decoder(target[:, :length], encoded, incremental_state=state)[0])
    return torch.cat(steps, 1), state


@every_kind
@pytest.mark.parametrize("reorder_at", [None, 4])
def test_a01_step_by_step_equals_whole_prefix(options, reorder_at):
    model = build(**options).eval()
    source, lengths, target = make_batch()
    with torch.no_grad():
        encoded = model.encoder(source, lengths)
        whole = model.decoder(target, encoded)[0]
        stepwise, state = decode_step_by_step(model, encoded, target, reorder_at)
    assert (whole - stepwise).abs().max() < 1e-5
    assert len(state) == 6  # self- and cross-attention of three depths


def test_a11_shared_parameters_count_once():
    """Case A1's sizes, 20 words, decoder layers shared whole: 10,784, not 17,858."""
    model = build(20, encoder_stored_layers=3, share_norms=True)
    assert count_parameters(model) == 10_784
    assert count_as_if_unshared(model) == 10_784 + 2 * 3_344


@every_kind
def test_as_if_unshared_is_the_size_of_the_unshared_model(options):
    options = {"encoder_normalize_before": True, "decoder_normalize_before": True} | options
    if options.get("post_norm"):
        options |= {"encoder_normalize_before": False, "decoder_normalize_before": False}
    plain = options | {"share_pattern": "none", "weight_source": "stored", "share_norms": False}
    assert count_as_if_unshared(build(**options)) == count_parameters(build(**plain))


@every_kind
def test_a23_every_parameter_gets_a_gradient(options):
    model = build(**options)
    model(*make_batch())[0].sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_none_is_fairseqs_own_transformer():
    options = {"share_pattern": "none", "decoder_normalize_before": True}
    ours = build(**options).eval()
    words = nameless_dictionary(604)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    cfg = transformer_config(ShareTransformerConfig(**(SMALL | options)))
    theirs = TransformerModelBase.build_model(cfg, task).eval()
    state = ours.state_dict()
    state.pop("sharing_version")
    theirs.load_state_dict(state)
    arguments = make_batch()
    assert torch.equal(ours(*arguments)[0], theirs(*arguments)[0])
    assert type(cfg) is TransformerConfig


def test_depths_keep_their_own_biases_and_norms():
    model = build()
    first, second, _ = model.decoder.layers
    assert first.fc1.weight is second.fc1.weight
    assert first.encoder_attn.k_proj.weight is second.encoder_attn.k_proj.weight
    assert first.fc1.bias is not second.fc1.bias
    assert first.final_layer_norm.weight is not second.final_layer_norm.weight
    shared = build(share_norms=True).decoder.layers
    assert shared[0].fc1.bias is shared[2].fc1.bias
    assert shared[0].final_layer_norm.weight is shared[2].final_layer_norm.weight


@every_kind
def test_checkpoint_round_trip(options):
    model = build(**options).eval()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    state = torch.load(io.BytesIO(file.getvalue()))
    other = build(**options).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(state)
    arguments = make_batch()
    assert torch.equal(model(*arguments)[0], other(*arguments)[0])
    if options.get("share_pattern") != "none":
        layer_keys = [key for key in state if ".layers." in key and key.endswith("fc1.weight")]
        stored = {id(p) for n, p in model.named_parameters() if n.endswith("fc1.weight")}
        assert len(layer_keys) == len(stored)  # every stored layer once
    names = [n for n, p in other.named_parameters(remove_duplicate=False)]
    assert (
        len({id(p) for p in other.parameters()})
        == len({id(p) for p in model.parameters()})
        <= len(names)
    )


@every_kind
def test_copies_and_pickles_after_a_step(options):
    model = build(**options)
    arguments = make_batch()
    model(*arguments)[0].sum().backward()
    model.eval()
    with torch.no_grad():
        wanted = model(*arguments)[0]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(*arguments)[0], wanted)


@every_kind
def test_moving_average_of_the_weights(options):
    model = build(**options)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.9))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    before = next(average.get_model().parameters()).clone()
    average.step(model)
    after = average.get_model()
    wanted = before * 0.9 + next(model.parameters()) * 0.1
    assert torch.allclose(next(after.parameters()), wanted, atol=1e-6)
    assert after.kind == model.kind
    build(**options).load_state_dict(after.state_dict())


@every_kind
def test_beam_search_and_sampling(options):
    models = [build(**options).eval(), build(**(options | {"dropout": 0.1})).eval()]
    source, lengths, _ = make_batch()
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
    for extra in ({}, {"search_strategy": _sampling()}):
        generator = SequenceGenerator(
            models, nameless_dictionary(604), beam_size=3, max_len_b=5, **extra
        )
        assert len(generator.generate(models, sample)) == 2


def _sampling():
    from fairseq.search import Sampling

    return Sampling(nameless_dictionary(604))


def test_layerdrop():
    model = build(weight_source="eps", encoder_layerdrop=0.5, decoder_layerdrop=0.5)
    for _ in range(8):
        model(*make_batch())[0].sum().backward()
    assert model.encoder.embed_tokens.weight.grad.abs().sum() > 0


def test_checkpoint_activations_gives_the_same_gradient():
    gradients = []
    for flag in (False, True):
        model = build(weight_source="eps", checkpoint_activations=flag)
        model(*make_batch())[0].square().sum().backward()
        gradients.append(model.decoder.embed_tokens.weight.grad)
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)


def test_joined_table_has_one_lender_of_disjoint_columns():
    model = build(weight_source="eps", share_all_embeddings=True)
    assert model.encoder.lender is model.decoder.lender
    spans = sorted(model.kind["columns"].values())
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    apart = build(weight_source="eps", target_words=700)
    assert apart.encoder.lender.table is apart.encoder.embed_tokens
    assert apart.decoder.lender.table is apart.decoder.embed_tokens


def test_pad_row_is_inert_in_the_model():
    model = build(weight_source="eps").eval()
    source, lengths, _ = make_batch()
    before = model.encoder(source, lengths)["encoder_out"][0]
    with torch.no_grad():
        model.encoder.embed_tokens.weight[model.encoder.padding_idx] = 9
    assert torch.equal(model.encoder(source, lengths)["encoder_out"][0], before)


def test_borrowed_layers_are_pre_norm_unless_asked():
    assert build(weight_source="eps").cfg.encoder.normalize_before
    assert build(weight_source="veps").decoder.layers[0].normalize_before
    assert not build(weight_source="eps", post_norm=True).cfg.encoder.normalize_before
    assert not build().cfg.decoder.normalize_before


def test_factorised_table():
    model = build(factor_dim=8, share_all_embeddings=True)
    assert model.encoder.embed_tokens.weight.shape == (604, 8)
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
    ids = torch.arange(4, 604)
    assert model.encoder.embed_tokens(ids).std().item() == pytest.approx(16**-0.5, rel=0.2)


FITS = {
    "FFN": lambda text: {
        "encoder_ffn_embed_dim": int(text.split("FFN of ")[1].split()[0]),
        "decoder_ffn_embed_dim": int(text.split("FFN of ")[1].split()[0]),
    },
    "vocabulary": lambda text: {"words": int(text.split("vocabulary of ")[1].split()[0]) - 4},
    "encoder": lambda text: {"borrow": "encoder"} if "--borrow encoder" in text else None,
    "veps": lambda text: {
        "weight_source": "veps",
        "virtual_dim": int(text.split("--virtual-dim ")[1].split()[0]),
    },
}


@pytest.mark.parametrize("fit", FITS)
def test_a_plan_that_does_not_fit_is_refused_with_what_does(fit):
    options = {"weight_source": "eps", "share_all_embeddings": True}
    with pytest.raises(UserError, match=r"need 20 columns of 298 rows.* has 16") as refused:
        build(296, **options)
    text = str(refused.value)
    change = FITS[fit](text)
    assert change is not None, text
    build(**({"words": 296} | options | change))
    if fit == "FFN":  # it is the largest
        larger = {key: value + 8 for key, value in change.items()}
        with pytest.raises(UserError):
            build(296, **options, **larger)
    if fit == "vocabulary":  # it is the smallest
        with pytest.raises(UserError):
            build(change["words"] - 1, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_stored_layers": 4}, "4 stored layers cannot serve 3"),
        ({"weight_source": "eps", "quant_noise_pq": 0.1}, "--quant-noise-pq.*--weight-source eps"),
        ({"weight_source": "veps", "virtual_dim": 3}, "has 3 .--virtual-dim"),
        ({"target_words": 498, "share_all_embeddings": True}, "604 entries.*502.*joined"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(UserError, match=message):
        build(**options)


def test_a24_dictionaries_of_different_sizes():
    with pytest.raises(UserError, match=r"20 entries.* 22.*--joined-dictionary"):
        build(16, 18, share_all_embeddings=True)


@pytest.mark.parametrize("other", [{}, {"weight_source": "eps"}, {"encoder_stored_layers": 2}])
def test_a_checkpoint_of_another_kind_is_refused(other):
    wanted = {"share_pattern": "sequence", "encoder_stored_layers": 3}
    with pytest.raises(UserError, match=r"the checkpoint is .*cycle.* this model is .*sequence"):
        build(**wanted).load_state_dict(build(**other).state_dict())


def test_with_one_stored_layer_every_pattern_is_the_same():
    build(share_pattern="sequence").load_state_dict(build(share_pattern="cycle").state_dict())


def test_a_checkpoint_without_sharing_is_refused():
    state = build(share_pattern="none").state_dict()
    del state["sharing_version"]
    with pytest.raises(UserError, match=r"architecture without sharing.*this model is eps"):
        build(weight_source="eps").load_state_dict(state)


class TestCpuAutocast:
    def loss(self, model):
        words = nameless_dictionary(604)
        task = SimpleNamespace(target_dictionary=words)
        criterion = LabelSmoothedCrossEntropyCriterion(task, True, 0.1)
        source, lengths, target = make_batch()
        sample = {
            "net_input": {
                "src_tokens": source,
                "src_lengths": lengths,
                "prev_output_tokens": target,
            },
            "target": target,
            "ntokens": target.numel(),
        }
        return criterion(model, sample)[0]

    def test_trains_in_bfloat16_with_an_fp32_loss(self, monkeypatch):
        monkeypatch.setattr(precision, "bfloat16_speed", lambda: 2.0)
        plain, fast = build(weight_source="eps"), build(weight_source="eps", cpu_autocast=True)
        fast.load_state_dict(plain.state_dict())
        assert fast(*make_batch())[0].dtype == torch.bfloat16
        loss, wanted = self.loss(fast), self.loss(plain)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-2)
        assert loss.item() != wanted.item()
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in fast.parameters())

    def test_evaluates_in_fp32(self):
        model = build(cpu_autocast=True).eval()
        assert model(*make_batch())[0].dtype == torch.float32

    def test_refused_where_it_is_slower(self, monkeypatch):
        monkeypatch.setattr(precision, "bfloat16_speed", lambda: 0.5)
        with pytest.raises(UserError, match=r"0\.50 times.*leave --cpu-autocast out"):
            build(cpu_autocast=True)(*make_batch())

    def test_refused_on_another_device(self):
        with pytest.raises(UserError, match="--cpu-autocast on cuda"):
            precision.cpu_autocast(torch.device("cuda"))
