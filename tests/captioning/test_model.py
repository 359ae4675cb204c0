"""share_transformer with pictures as its source."""

from types import SimpleNamespace

import pytest
import torch

from captioning.dataset import CaptionDataset
from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.errors import UserError
from fairseq_plugins.models.share_config import ShareTransformerConfig
from fairseq_plugins.models.share_transformer import ShareTransformerModel
from fairseq_plugins.models.visual import VisualSource
from fairseq_plugins.sizes import count_parameters, sizes_of_model
from tests.helpers import KINDS, SMALL

SOURCE = VisualSource(channels=12, grid=(2, 3), origin="made up")


def build(source=SOURCE, words=600, **options) -> ShareTransformerModel:
    dictionary = nameless_dictionary(words + 4)
    task = SimpleNamespace(
        source_dictionary=None, target_dictionary=dictionary, visual_source=source
    )
    torch.manual_seed(1)
    return ShareTransformerModel.build_model(ShareTransformerConfig(**(SMALL | options)), task)


def batch(cells=6, images=3, channels=12, lengths=(4, 5, 3, 6), of=(0, 1, 2, 1)):
    generator = torch.Generator().manual_seed(3)
    texts = torch.full((len(lengths), max(lengths)), 1)
    for row, length in enumerate(lengths):
        texts[row, :length] = torch.randint(4, 600, (length,), generator=generator)
    return {
        "src_tokens": torch.full((images, cells), 3),
        "src_lengths": torch.full((images,), cells),
        "cells": torch.randn(images, cells, channels, generator=generator),
        "prev_output_tokens": texts,
        "image_of_caption": torch.tensor(of),
    }


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def options(self, kind):
        return {k: v for k, v in KINDS[kind].items() if k != "share_all_embeddings"}

    def test_a23_every_parameter_has_a_gradient(self, kind):
        model = build(**self.options(kind), cell_positions=True)
        model(**batch())[0].sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    def test_a01_step_by_step_decoding(self, kind):
        model = build(**self.options(kind), cell_positions=True).eval()
        source = batch(lengths=(5, 5, 5), of=(0, 1, 2))
        prefix = source.pop("prev_output_tokens")
        source.pop("image_of_caption")
        with torch.no_grad():
            encoder_out = model.encoder(**source)
            whole = model.decoder(prefix, encoder_out=encoder_out)[0]
            state: dict = {}
            steps = [
                model.decoder(prefix[:, : i + 1], encoder_out=encoder_out, incremental_state=state)
                for i in range(5)
            ]
        assert (torch.cat([step[0] for step in steps], 1) - whole).abs().max() < 1e-5

    def test_saved_and_loaded(self, kind):
        model = build(**self.options(kind))
        other = build(**self.options(kind))
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        other.load_state_dict(model.state_dict())
        model.eval(), other.eval()
        assert torch.equal(model(**batch())[0], other(**batch())[0])


def test_a_picture_with_several_captions_is_encoded_once_and_alike():
    model = build(weight_source="eps").eval()
    source = batch()
    together = model(**source)[0]
    calls = []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    model(**source)
    assert len(calls) == 1
    of = source.pop("image_of_caption")
    repeated = {k: v[of] for k, v in source.items() if k != "prev_output_tokens"}
    alone = model(
        **repeated,
        prev_output_tokens=source["prev_output_tokens"],
        image_of_caption=torch.arange(4),
    )[0]
    assert (together - alone).abs().max() < 1e-6


def test_both_sides_borrow_from_the_captions_table():
    stored, eps = build(), build(weight_source="eps")
    assert eps.encoder.lender is eps.decoder.lender is not None
    assert eps.encoder.embed_tokens is eps.decoder.embed_tokens
    assert count_parameters(eps) < count_parameters(stored)
    sizes = sizes_of_model(eps)
    assert sizes["flops_per_token"] > 0 and len(sizes["columns"]) == 6 + 10


def test_padding_cells_change_nothing():
    model = build().eval()
    source = batch()
    before = model(**source)[0]
    pad = torch.full((3, 2), 1)
    source["src_tokens"] = torch.cat([source["src_tokens"], pad], 1)
    source["cells"] = torch.cat([source["cells"], torch.full((3, 2, 12), 9.0)], 1)
    assert (model(**source)[0] - before).abs().max() < 1e-5


def test_positions_tell_cells_apart_and_boxes_are_read():
    source = batch()
    turned = source | {"cells": source["cells"].flip(1)}
    blind, seeing = build().eval(), build(cell_positions=True).eval()
    for rows in (seeing.encoder.embed_cells.rows, seeing.encoder.embed_cells.columns):
        torch.nn.init.normal_(rows)
    assert (blind(**source)[0] - blind(**turned)[0]).abs().max() < 1e-5
    assert (seeing(**source)[0] - seeing(**turned)[0]).abs().max() > 1e-3
    regions = build(VisualSource(channels=12, boxes=True)).eval()
    here = source | {"boxes": torch.rand(3, 6, 4)}
    there = source | {"boxes": torch.rand(3, 6, 4)}
    assert not torch.equal(regions(**here)[0], regions(**there)[0])


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (
            {"weight_source": "eps", "encoder_ffn_embed_dim": 512},
            ["columns", "--weight-source veps"],
        ),
        ({"decoder_embed_dim": 32}, ["--encoder-embed-dim 16", "--decoder-embed-dim 32"]),
    ],
)
def test_what_does_not_fit_is_refused(options, messages):
    with pytest.raises(UserError) as refused:
        build(**options)
    assert all(message in str(refused.value) for message in messages)


def test_a13_a_checkpoint_of_other_cells_is_refused_with_both_names():
    state = build(VisualSource(12, (2, 3), origin="resnet18 (weights 1)")).state_dict()
    with pytest.raises(UserError, match=r"resnet18 \(weights 1\).*swin \(weights 2\)"):
        build(VisualSource(12, (2, 3), origin="swin (weights 2)")).load_state_dict(state)


class TestBackbone:
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(3, 12).requires_grad_(False)

        def forward(self, pixels):
            return self.map(pixels.flatten(2).transpose(1, 2))

    def build(self, after):
        source = VisualSource(12, (2, 3), backbone=self.Network(), finetune_after=after)
        source_batch = batch()
        source_batch.pop("cells")
        return build(source), source_batch | {"cells": None, "pixels": torch.rand(3, 3, 2, 3)}

    def test_frozen(self):
        model, source = self.build(None)
        model(**source)[0].sum().backward()
        assert model.encoder.embed_cells.backbone.map.weight.grad is None

    def test_trained_after_so_many_updates(self):
        model, source = self.build(10)
        weight = model.encoder.embed_cells.backbone.map.weight
        model.set_num_updates(9)
        model(**source)[0].sum().backward()
        assert weight.grad is None
        model.set_num_updates(10)
        model(**source)[0].sum().backward()
        assert weight.grad.abs().max() > 0


def test_dataset_rows_are_first_captions_first():
    words = nameless_dictionary(20)
    texts = [torch.tensor([5 + i, 2]) for i in range(6)]
    stored = type("Texts", (list,), {"sizes": [2] * 6})(texts)
    view = {7: torch.zeros(2, 4), 8: torch.zeros(3, 4)}
    dataset = CaptionDataset(
        [7, 8],
        [[0, 1, 2], [3, 4]],
        stored,
        lambda i: {"cells": view[i].numpy()},
        words,
        split="train",
    )
    collated = dataset.collater([dataset[0], dataset[1]])
    assert collated["target"][:, 0].tolist() == [5, 8, 6, 9, 7]
    assert collated["net_input"]["image_of_caption"].tolist() == [0, 1, 0, 1, 0]
    assert collated["net_input"]["src_tokens"].tolist() == [[3, 3, 1], [3, 3, 3]]
    assert (collated["nsentences"], collated["ntokens"]) == (5, 10)

    few = CaptionDataset(
        [7], [[0, 1, 2]], stored, lambda i: {"cells": view[i].numpy()}, words, captions_per_image=2
    )
    drawn = set()
    for epoch in range(1, 9):
        few.set_epoch(epoch)
        drawn.add(tuple(int(text[0]) for text in few[0]["captions"]))
        assert [text.tolist() for text in few[0]["captions"]] == [
            text.tolist() for text in few[0]["captions"]
        ]
    assert len(drawn) > 1 and all(len(set(pair)) == 2 for pair in drawn)
