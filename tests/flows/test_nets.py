"""What couplings compute, where it is computed another way than it is written."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.flows import CrossUnitCoupling, Noise
from protoflows.flows.nets import DenseBlock, NystromAttention, spatial
from protoflows.flows.nets.neighbours import Neighbours
from protoflows.flows.nets.scratch import KEPT, scratch
from protoflows.flows.nets.spatial import GatheredGradients, LibraryGradients, conv3x3

SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (3, 5, 1, 7), (2, 4, 3, 1)]


class TestScratch:
    def test_one_name_is_one_memory(self) -> None:
        first = scratch("test", (3, 4), torch.zeros(()))
        again = scratch("test", (2, 2), torch.zeros(()))
        assert again.shape == (2, 2)
        assert again.data_ptr() == first.data_ptr()
        assert scratch("other", (3, 4), torch.zeros(())).data_ptr() != first.data_ptr()
        assert scratch("test", (3, 4), torch.zeros((), dtype=torch.float64)).dtype == torch.float64

    def test_grows(self) -> None:
        scratch("growing", (2,), torch.zeros(()))
        assert scratch("growing", (5, 5), torch.zeros(())).fill_(1).sum() == 25

    def test_what_is_large_is_not_kept(self) -> None:
        like = torch.zeros((), dtype=torch.uint8)
        first = scratch("large", (KEPT + 1,), like)
        assert scratch("large", (KEPT + 1,), like).data_ptr() != first.data_ptr()

    def test_threads_do_not_share(self) -> None:
        found: list[int] = []
        thread = threading.Thread(
            target=lambda: found.append(scratch("threads", (4,), torch.zeros(())).data_ptr())
        )
        mine = scratch("threads", (4,), torch.zeros(()))
        thread.start()
        thread.join()
        assert found != [mine.data_ptr()]

    def test_training_after_inference_mode(self) -> None:
        """What inference mode allocates must not be written outside of it."""
        with torch.inference_mode():
            scratch("inference", (4,), torch.zeros(()))
        kept = scratch("inference", (4,), torch.zeros(()))
        torch.mul(torch.ones(4), 2, out=kept)
        assert not kept.is_inference()
        assert kept.tolist() == [2] * 4

    def test_inference_keeps_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names: list[str] = []

        def noting(name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
            names.append(name)
            return scratch(name, shape, like)

        monkeypatch.setattr("protoflows.flows.nets.dense_block.scratch", noting)
        block, x = DenseBlock(3, 4, depth=2, growth=5), torch.randn(2, 3, 4, 4)
        with torch.no_grad():
            expected = block(x)
        assert names == []
        torch.testing.assert_close(block(x), expected)
        assert names == ["hidden"] * 2


@pytest.mark.parametrize("shape", SHAPES)
def test_neighbours_are_those_of_unfold(shape: tuple[int, ...]) -> None:
    n, channels, height, width = shape
    x = torch.randn(shape)
    around = Neighbours(shape, x)
    around.map.copy_(x)
    expected = F.unfold(x, 3, padding=1).view(n, channels, 9, height * width)
    expected = expected.permute(0, 3, 2, 1).reshape(-1, 9, channels)
    got = around.gather().view(-1, 9, channels).clone()
    assert torch.equal(got, expected)
    assert torch.equal(around.gather(back=True).view(-1, 9, channels), expected.flip(1))


@pytest.mark.parametrize("shape", SHAPES)
def test_gathered_gradients_are_the_librarys(shape: tuple[int, ...]) -> None:
    n, growth, height, width = shape
    h = torch.randn(n, 6, height, width, dtype=torch.float64)
    weight = torch.randn(growth, 6, 3, 3, dtype=torch.float64)
    grad = torch.randn(shape, dtype=torch.float64)
    found = []
    for kind in (GatheredGradients, LibraryGradients):
        gradients = kind(shape, grad)
        gradients.map.copy_(grad)
        found.append([gradients.of_input(h, weight), *gradients.of_weight(h, weight)])
    for gathered, library in zip(*found, strict=True):
        torch.testing.assert_close(gathered, library)


@pytest.mark.parametrize("limit", [0, 10**6])
@pytest.mark.parametrize("shape", SHAPES)
def test_conv3x3_is_a_convolution(
    shape: tuple[int, ...], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both ways; the gathered one is 16 bits' own, so it is let in for float64 here."""
    monkeypatch.setattr(spatial, "_gathers", lambda shape, like: bool(limit))
    conv = torch.nn.Conv2d(shape[1], 8, 3, padding=1).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert conv.bias is not None
    inputs = [x, conv.weight, conv.bias]
    got, wanted = conv3x3(x, conv.weight, conv.bias), conv(x)
    torch.testing.assert_close(got, wanted)
    weight = torch.randn_like(got)
    for g, w in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((wanted * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("limit", [0, 10**6])
def test_bfloat16_gradients_stay_near_float32(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides of the size at which gradients are gathered."""
    monkeypatch.setattr(spatial, "GATHERED_POSITIONS", limit)
    torch.manual_seed(0)
    block = DenseBlock(6, 4, depth=3, growth=8)
    cross = CrossUnitCoupling(6, 5)
    torch.nn.init.normal_(cross.net[2].weight, std=0.1)  # type: ignore[arg-type]
    x = torch.randn(4, 6, 5, 5)
    found: dict[torch.dtype | None, torch.Tensor] = {}
    for dtype in (None, torch.bfloat16):
        cross.net_dtype = dtype
        inputs = x.clone().requires_grad_()
        out, term = cross(inputs, inputs, Noise(4, seed=0))
        loss = block(inputs.to(dtype or torch.float32)).float().square().sum() + out.square().sum()
        parameters = [*block.parameters(), *cross.parameters()]
        grads = torch.autograd.grad(loss + term.sum(), [inputs, *parameters])
        assert all(g.dtype == torch.float32 for g in grads)
        for g, p in zip(grads[1:], parameters, strict=True):  # laid out alike: not copied again
            assert dtype is None or 3 not in p.shape[2:] or g.stride() == p.stride()
        found[dtype] = torch.cat([g.flatten() for g in grads])
    assert torch.cosine_similarity(found[None], found[torch.bfloat16], dim=0) > 0.999


@settings(max_examples=10, deadline=None)
@given(height=st.integers(1, 4), width=st.integers(1, 4), landmarks=st.integers(1, 5))
def test_attention_gradient(height: int, width: int, landmarks: int) -> None:
    torch.manual_seed(height + 10 * width + 100 * landmarks)
    layer = NystromAttention(4, landmarks).double()
    x = torch.randn(2, 4, height, width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,), fast_mode=True)


def test_attention_trains_at_a_size_first_seen_in_inference_mode() -> None:
    layer, x = NystromAttention(4), torch.randn(1, 4, 9, 13)  # a size that no other test uses
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_attention_computes_in_float32_at_least() -> None:
    torch.manual_seed(0)
    layer = NystromAttention(6)
    x = torch.randn(2, 6, 4, 4).bfloat16()
    low = layer(x)
    assert low.dtype == torch.bfloat16
    assert (low.float() - layer(x.float())).abs().max() < 0.02
