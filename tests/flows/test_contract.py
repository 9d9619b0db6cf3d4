"""One contract for every layer: what any bijection of the package has to keep."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor

from protoflows.flows import (
    ActNorm,
    AffineCoupling,
    Bijection,
    Chain,
    InvertibleConv,
    Logit,
    SigmoidOf,
    Squeeze,
    SwapHalves,
)
from protoflows.flows.nets import ConditionalNet, CouplingNet
from tests.flows.helpers import log_abs_det, perturb


def _coupling(channels: int, attention: bool = True) -> AffineCoupling:
    return AffineCoupling(CouplingNet((channels + 1) // 2, 2 * (channels // 2), 4, 2, 3, attention))


def _steps(channels: int, memory: str) -> Chain:
    layers: list[Bijection] = []
    for _ in range(2):
        layers += [ActNorm(channels), InvertibleConv(channels), _coupling(channels), SwapHalves()]
    return Chain(layers, memory)


class _LogitOfTanh(Logit):
    """The logit on inputs of any size, brought into its domain by y = tanh(x)/2."""

    def __init__(self) -> None:
        super().__init__(0.01)

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, log_det = super().forward(torch.tanh(x) / 2)
        return z, log_det + (0.5 * (1 - torch.tanh(x).square())).log().flatten(1).sum(1)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        return torch.atanh(2 * super().inverse(z))


CONTEXT = 3
CASES = {
    "actnorm": (lambda: ActNorm(3), (3, 2, 3), False),
    "conv1x1": (lambda: InvertibleConv(3), (3, 3, 2), False),
    "conv1x1 of one channel": (lambda: InvertibleConv(1), (1, 2, 2), False),
    "squeeze": (Squeeze, (1, 4, 2), False),
    "swap": (SwapHalves, (4, 2, 2), False),
    "swap, odd": (SwapHalves, (5, 1, 2), False),
    "logit": (_LogitOfTanh, (2, 2, 2), False),
    "sigmoid": (SigmoidOf, (2, 2, 2), False),
    "coupling": (lambda: _coupling(4), (4, 2, 2), False),
    "coupling, odd": (lambda: _coupling(5), (5, 1, 3), False),
    "coupling, one position": (lambda: _coupling(3), (3, 1, 1), False),
    "coupling without attention": (lambda: _coupling(4, attention=False), (4, 3, 2), False),
    "conditional coupling": (
        lambda: AffineCoupling(ConditionalNet(2, CONTEXT, 4, 4, 1, 2)),
        (4, 2, 2),
        True,
    ),
    "chain, store": (lambda: _steps(5, "store"), (5, 2, 2), False),
    "chain, checkpoint": (lambda: _steps(5, "checkpoint"), (5, 2, 2), False),
    "chain, reversible": (lambda: _steps(5, "reversible"), (5, 2, 2), False),
}


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Bijection, Tensor, Tensor | None]:
    make, shape, conditional = CASES[request.param]
    torch.manual_seed(0)
    layer = perturb(make()).double()
    assert isinstance(layer, Bijection)
    x = torch.randn(3, *shape, dtype=torch.float64)
    context = torch.randn(3, CONTEXT, *shape[1:], dtype=torch.float64) if conditional else None
    return layer, x, context


def test_shapes(case: tuple[Bijection, Tensor, Tensor | None]) -> None:
    layer, x, context = case
    z, log_det = layer(x, context)
    assert z.numel() == x.numel()
    assert len(z) == len(x)
    assert log_det.shape == (3,)
    assert log_det.dtype == z.dtype == torch.float64


@pytest.mark.parametrize("training", [False, True])
def test_inverse_gives_the_input_back(
    case: tuple[Bijection, Tensor, Tensor | None], training: bool
) -> None:
    layer, x, context = case
    layer.train(training)
    with torch.no_grad():
        z, _ = layer(x, context)
        torch.testing.assert_close(layer.inverse(z, context), x, rtol=1e-9, atol=1e-9)


def test_log_det_is_that_of_the_jacobian(case: tuple[Bijection, Tensor, Tensor | None]) -> None:
    layer, x, context = case
    layer.eval()
    _, log_det = layer(x, context)
    for i in range(len(x)):
        here = None if context is None else context[i : i + 1]
        exact = log_abs_det(lambda v, here=here: layer(v[None], here)[0], x[i])
        torch.testing.assert_close(log_det[i], exact, rtol=1e-6, atol=1e-9)


def test_gradient_reaches_every_parameter(case: tuple[Bijection, Tensor, Tensor | None]) -> None:
    layer, x, context = case
    layer.train()
    weight = torch.randn_like(layer(x, context)[0])
    z, log_det = layer(x.requires_grad_(), context)
    ((z * weight).sum() + log_det.sum()).backward()
    assert x.grad is not None
    dead = {name for name, p in layer.named_parameters() if p.grad is None or p.grad.norm() < 1e-12}
    # Batch norm takes away what shifts a channel of all images alike: the last bias of attention,
    # and at a single position, where attention is linear, the first one, too.
    cancelled = {"attention.out.bias"} | ({"attention.qkv.bias"} if x[0, 0].numel() == 1 else set())
    assert not {name for name in dead if not name.endswith(tuple(cancelled))}


def test_train_and_eval_agree_once_statistics_are_the_batchs(
    case: tuple[Bijection, Tensor, Tensor | None],
) -> None:
    layer, x, context = case
    norms = [m for m in layer.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for m in norms:
        m.momentum = 1.0  # the running statistics become those of the batch
    layer.train()
    with torch.no_grad():
        trained = layer(x, context)
        count = x[:, 0].numel()
        for m in norms:
            # Normalising uses the biased variance, counting the unbiased.
            m.running_var.mul_((count - 1) / count)
        layer.eval()
        for got, wanted in zip(layer(x, context), trained, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_save_load_and_copy_give_the_same_map(
    case: tuple[Bijection, Tensor, Tensor | None],
) -> None:
    layer, x, context = case
    layer.eval()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin = copy.deepcopy(layer)
    perturb(twin, seed=2)
    twin.load_state_dict(torch.load(file, weights_only=True))
    for got, wanted in zip(twin(x, context), layer(x, context), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_repr_names_the_layer_on_its_first_line(
    case: tuple[Bijection, Tensor, Tensor | None],
) -> None:
    layer, _, _ = case
    assert repr(layer).startswith(type(layer).__name__ + "(")


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(N, 3, H, W\), got \(2, 4, 2, 2\)"):
        ActNorm(3)(torch.zeros(2, 4, 2, 2))
    with pytest.raises(ValueError, match="x must be floating point, got torch.uint8"):
        InvertibleConv(3)(torch.zeros(2, 3, 2, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"even H and W, got \(1, 1, 3, 2\)"):
        Squeeze()(torch.zeros(1, 1, 3, 2))
    with pytest.raises(ValueError, match="at least 2 channels"):
        _coupling(2)(torch.zeros(1, 1, 2, 2))
    with pytest.raises(ValueError, match="context is missing"):
        AffineCoupling(ConditionalNet(2, CONTEXT, 4, 4, 1, 2))(torch.zeros(1, 4, 2, 2))
