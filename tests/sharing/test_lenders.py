import copy
import pickle

import pytest
import torch
from torch import nn

from fairseq_plugins.sharing import BorrowedLinear, ColumnPlan, Lender, VirtualLender

ROWS, PAD = 40, 1
SHAPES = {"A": (6, 6), "B": (6, 10), "C": (10, 6)}


def lender(kind=Lender, width=8, **options):
    torch.manual_seed(1)
    table = nn.Embedding(ROWS, width, padding_idx=PAD)
    nn.init.normal_(table.weight, 0, width**-0.5)
    plan = ColumnPlan(ROWS - 2, 8, SHAPES)
    result = kind(table, plan, **options)
    layers = nn.ModuleList(
        BorrowedLinear(nn.Linear(*shape), result, name) for name, shape in SHAPES.items()
    )
    return nn.ModuleDict({"table": table, "lender": result, "layers": layers})


def run(model, x):
    for layer in model["layers"]:
        x = layer(x)
    return x


def reference(table, x, biases, columns):
    """The paper's reading, one slice a weight."""
    for bias, (name, shape) in zip(biases, SHAPES.items(), strict=True):
        first, last = columns[name]
        entries = table[2:, first : last + 1].reshape(-1)[: shape[0] * shape[1]]
        x = x @ entries.view(shape) + bias
    return x


def test_equals_slicing_in_value_and_gradient():
    model = lender().double()
    x = torch.randn(5, 6, dtype=torch.double)
    biases = [layer.bias for layer in model["layers"]]
    table = model["table"].weight
    expected = reference(table, x, biases, model["lender"].plan.columns)
    with model["lender"].lend():
        got = run(model, x)
    assert torch.allclose(got, expected)
    wanted = torch.autograd.grad(expected.square().sum(), table)[0]
    assert torch.allclose(torch.autograd.grad(got.square().sum(), table)[0], wanted)


def graph(node, seen):
    if node is not None and node not in seen:
        seen.add(node)
        for following, _ in node.next_functions:
            graph(following, seen)
    return seen


@pytest.mark.parametrize("kind", [Lender, VirtualLender])
def test_one_split_a_step(kind):
    model = lender(kind)
    with model["lender"].lend():
        x = run(model, torch.randn(5, 6))
        x = run(model, x)  # every weight is used twice
    names = [type(node).__name__ for node in graph(x.grad_fn, set())]
    assert sum(name.startswith("Split") for name in names) == 1


@pytest.mark.parametrize("kind", [Lender, VirtualLender])
def test_pad_row_is_inert(kind):
    model = lender(kind)
    x = torch.randn(5, 6)
    before = run(model, x)
    with torch.no_grad():
        model["table"].weight[PAD] = float("nan")
    after = run(model, x)
    assert torch.equal(before, after)
    after.sum().backward()
    assert not model["table"].weight.grad[PAD].any()


def change_by_torch(model):
    torch.optim.SGD(model.parameters(), 0.1).step()


def change_data(model):
    for parameter in model.parameters():
        parameter.data.add_(0.1)  # as fairseq's optimisers do


def change_by_loading(model):
    model.load_state_dict({name: t + 0.1 for name, t in model.state_dict().items()})


def test_kept_at_inference_until_something_changes():
    model = lender().eval()
    with torch.no_grad():
        assert model["layers"][0].weight is model["layers"][0].weight
        model["table"].weight.mul_(2)
        first = model["layers"][0].weight
        assert torch.equal(first, model["lender"].plan.read(model["lender"].matrix())["A"])
        assert not first.requires_grad


@pytest.mark.parametrize("change", [change_by_torch, change_data, change_by_loading])
@pytest.mark.parametrize("kind", [Lender, VirtualLender])
def test_right_after_a_training_step(change, kind):
    model, x = lender(kind), torch.randn(5, 6)
    model.eval()
    with torch.no_grad():
        before = run(model, x)
    model.train()
    run(model, x).sum().backward()
    change(model)
    model.eval()
    with torch.no_grad():
        after = run(model, x)
        fresh = copy.deepcopy(model)
        assert torch.equal(run(fresh, x), after)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.bfloat16, nn.Module.half])
def test_right_after_conversion(convert):
    model, x = lender().eval(), torch.randn(5, 6)
    with torch.no_grad():
        before = run(model, x)
        convert(model)
        after = run(model, x.to(model["table"].weight.dtype))
    assert after.dtype == model["table"].weight.dtype
    assert torch.allclose(after.float(), before, atol=0.1)


@pytest.mark.parametrize("kind", [Lender, VirtualLender])
def test_copies_and_pickles_after_a_step(kind):
    model, x = lender(kind), torch.randn(5, 6)
    with model["lender"].lend():
        run(model, x).sum().backward()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other["table"].weight.add_(1)
            changed = run(other, x)
            assert other["layers"][0].lender is other["lender"]
            assert other["lender"].table is other["table"]
        assert not torch.allclose(changed, run(model, x))


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_virtual_weights_start_at_xavier(width, gain):
    table = nn.Embedding(2002, width, padding_idx=PAD)
    nn.init.normal_(table.weight, 0, width**-0.5)
    shapes = {"square": (128, 128), "wide": (128, 512)}
    plan = ColumnPlan(2000, 60, shapes)
    weights = VirtualLender(table, plan, gain).weights()
    for name, (inputs, outputs) in shapes.items():
        xavier = (2 / (inputs + outputs)) ** 0.5
        assert weights[name].std().item() == pytest.approx(gain * xavier, rel=0.1)


def test_only_planned_columns_are_computed():
    table = nn.Embedding(ROWS, 4, padding_idx=PAD)
    made = VirtualLender(table, ColumnPlan(ROWS - 2, 20, SHAPES))
    assert made.matrix().shape == (ROWS - 2, made.plan.needed)
    sum(weight.sum() for weight in made.weights().values()).backward()
    unused = 20 - made.plan.needed
    assert not made.map.weight.grad[:unused].any()
    assert made.map.weight.grad[unused:].all(dim=1).all()
