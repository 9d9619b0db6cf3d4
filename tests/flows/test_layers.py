"""Single layers against cases worked out by hand, and the traps each one is known for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.flows import (
    ActNorm,
    AffineCoupling,
    Bijection,
    CrossUnitCoupling,
    InvertibleConv,
    Noise,
    Squeeze,
    SwapHalves,
    Transition,
)
from protoflows.flows.fused import fused
from protoflows.flows.nets import (
    BatchNorm,
    CouplingNet,
    DenseBlock,
    NystromAttention,
    frozen_statistics,
)
from protoflows.flows.nets.attention import pseudo_inverse
from protoflows.flows.reshape import Padding
from tests.flows.helpers import perturb


class TestActNorm:
    def test_by_hand(self) -> None:
        layer = ActNorm(1).eval()
        layer.shift.data.fill_(3.0)
        layer.log_scale.data.fill_(math.log(2.0))
        z, log_det = layer(torch.full((1, 1, 2, 3), 7.0))
        assert z.flatten().tolist() == pytest.approx([2.0] * 6)
        assert log_det.item() == pytest.approx(-6 * math.log(2.0))

    def test_first_batch_in_training_sets_it_once(self) -> None:
        layer = ActNorm(2)
        x = 5 + 3 * torch.randn(64, 2, 4, 4)
        z, _ = layer(x)
        assert z.mean((0, 2, 3)).abs().max() < 1e-5
        assert (z.std((0, 2, 3)) - 1).abs().max() < 1e-3
        before = layer.shift.clone()
        layer(x + 100)
        assert torch.equal(layer.shift, before)

    def test_eval_does_not_initialise(self) -> None:
        layer = ActNorm(2).eval()
        layer(5 + torch.randn(8, 2, 2, 2))
        assert not layer.initialized
        assert layer.shift.abs().max() == 0

    def test_not_initialised_again_after_loading(self) -> None:
        layer = ActNorm(2)
        layer(torch.randn(8, 2, 2, 2))
        other = ActNorm(2)
        other.load_state_dict(layer.state_dict())
        other.train()(100 + torch.randn(8, 2, 2, 2))
        assert torch.equal(other.shift, layer.shift)

    def test_constant_channel_does_not_blow_up(self) -> None:
        layer = ActNorm(2)
        x = torch.randn(8, 2, 4, 4)
        x[:, 1] = 0.25
        z, log_det = layer(x)
        assert z.isfinite().all()
        assert log_det.isfinite().all()
        assert z[:, 1].abs().max() < 1e-5

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_non_finite_batch_does_not_initialise(self, bad: float) -> None:
        layer = ActNorm(1)
        x = torch.randn(4, 1, 2, 2)
        x[0, 0, 0, 0] = bad
        layer(x)
        assert not layer.initialized
        assert layer.shift.isfinite().all()
        layer(torch.randn(4, 1, 2, 2))
        assert layer.initialized


class TestInvertibleConv:
    def test_by_hand(self) -> None:
        layer = InvertibleConv(2)
        layer.weight.data.copy_(torch.tensor([[2.0, 0.0], [1.0, 3.0]]))
        z, log_det = layer(torch.tensor([1.0, 10.0]).view(1, 2, 1, 1).expand(1, 2, 2, 1))
        assert z[0, :, 0, 0].tolist() == [2.0, 31.0]
        assert log_det.item() == pytest.approx(2 * math.log(6.0))

    def test_cache_follows_the_weight(self) -> None:
        layer = InvertibleConv(4).eval()
        x = torch.randn(2, 4, 2, 2)
        with torch.no_grad():
            layer.inverse(layer(x)[0])
            layer.weight.mul_(2)
            z, log_det = layer(x)
            torch.testing.assert_close(layer.inverse(z), x, rtol=1e-5, atol=1e-5)
            assert log_det[0].item() == pytest.approx(
                4 * torch.linalg.slogdet(layer.weight).logabsdet.item(), rel=1e-5
            )

    @pytest.mark.parametrize("training", [True, False])
    def test_cache_sees_changes_that_leave_no_trace(self, training: bool) -> None:
        """Writes to `.data` and fused optimizers leave a tensor's version alone."""
        layer = InvertibleConv(4).train(training)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.5, fused=True)
        x = torch.randn(2, 4, 2, 2)
        with torch.no_grad():
            layer.inverse(layer(x)[0])
            layer.weight.data.mul_(2)
            torch.testing.assert_close(layer.inverse(layer(x)[0]), x, rtol=1e-5, atol=1e-5)
        layer(x)[0].sum().backward()
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(layer.inverse(layer(x)[0]), x, rtol=1e-5, atol=1e-5)

    def test_singular_weight_is_reported(self) -> None:
        layer = InvertibleConv(2).eval()
        layer.weight.data.zero_()
        with pytest.raises(ValueError, match="singular"), torch.no_grad():
            layer.inverse(torch.zeros(1, 2, 1, 1))

    def test_ill_conditioned_round_trip(self) -> None:
        layer = InvertibleConv(16).eval()
        u, _, v = torch.linalg.svd(torch.randn(16, 16))
        layer.weight.data.copy_(u @ torch.diag(torch.logspace(-3, 1, 16)) @ v)
        x = torch.randn(2, 16, 2, 2)
        with torch.no_grad():
            torch.testing.assert_close(layer.inverse(layer(x)[0]), x, rtol=1e-2, atol=1e-2)


def test_squeeze_order() -> None:
    x = torch.arange(2 * 2 * 2.0).view(1, 2, 2, 2)
    assert Squeeze()(x)[0].flatten().tolist() == list(range(8))


def test_coupling_by_hand() -> None:
    net = torch.nn.Conv2d(1, 2, 1)
    net.weight.data.copy_(torch.tensor([1.0, 10.0]).view(2, 1, 1, 1))  # r = a, shift = 10a
    net.bias.data.zero_()
    z, log_det = AffineCoupling(net)(torch.tensor([1.0, 3.0]).view(1, 2, 1, 1))
    s = 2 * math.tanh(0.5)
    assert z.flatten().tolist() == pytest.approx([1.0, 10 + 3 * math.exp(s)])
    assert log_det.item() == pytest.approx(s)


def test_coupling_interleaves_scale_and_shift() -> None:
    net = torch.nn.Conv2d(2, 4, 1)
    net.weight.data.zero_()
    # (r, shift) of one channel after the other
    net.bias.data.copy_(torch.tensor([1.0, 5.0, -1.0, 7.0]))
    s, shift = AffineCoupling(net).scale_and_shift(torch.zeros(1, 2, 1, 1))
    assert shift.flatten().tolist() == [5.0, 7.0]
    assert s.flatten().tolist() == pytest.approx([2 * math.tanh(0.5), -2 * math.tanh(0.5)])


def test_cross_unit_coupling_change_of_variables() -> None:
    """With e = (e' − μ)/exp(s) the term is −log N(e'; μ, exp(s)²).

    That is what the appended channels were drawn from.
    """
    layer = perturb(CrossUnitCoupling(3, 2)).double()
    x = torch.randn(4, 5, 2, 2, dtype=torch.float64)
    context = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    z, term = layer(x, context, Noise(4, 1.0, 0))
    mean, s = layer.location(context)
    density = torch.distributions.Normal(mean, s.exp()).log_prob(z[:, 5:]).flatten(1).sum(1)
    torch.testing.assert_close(term, -density)
    assert torch.equal(layer.inverse(z), x)


def test_transition_scores_what_it_puts_out_and_undoes_itself() -> None:
    layer = Transition()
    x = torch.randn(3, 3, 4, 2)
    out = layer(x)
    assert out.z.shape == out.factored.shape == (3, 6, 2, 1)
    expected = torch.distributions.Normal(0, 1).log_prob(out.factored).flatten(1).sum(1)
    torch.testing.assert_close(out.log_prob, expected)
    assert torch.equal(layer.inverse(out.z, out.factored), x)


class TestDenseBlock:
    @staticmethod
    def plain(block: DenseBlock, x: torch.Tensor) -> torch.Tensor:
        for one, three in zip(block.pointwise, block.spatial, strict=True):
            x = torch.cat([x, three(one(x).relu()).relu()], 1)
        p, q, r = block.gate(x).chunk(3, 1)
        return p + q * r.sigmoid()

    @pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 1, 1)])
    def test_value_and_gradient_are_those_of_concatenation(self, shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        block = DenseBlock(shape[1], 4, depth=3, growth=5).double()
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        inputs = [x, *block.parameters()]
        weight = torch.randn(shape[0], 4, *shape[2:], dtype=torch.float64)
        got, wanted = block(x), self.plain(block, x)
        torch.testing.assert_close(got, wanted)
        for g, w in zip(
            torch.autograd.grad((got * weight).sum(), inputs),
            torch.autograd.grad((wanted * weight).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(g, w)

    def test_bfloat16_stays_near_float32(self) -> None:
        torch.manual_seed(0)
        block = DenseBlock(6, 4, depth=3, growth=8)
        x = torch.randn(2, 6, 5, 5)
        low = block(x.bfloat16())
        assert low.dtype == torch.bfloat16
        assert (low.float() - block(x)).abs().max() < 0.05


class TestAttention:
    def test_follows_its_formula_where_landmarks_divide(self) -> None:
        torch.manual_seed(0)
        layer = NystromAttention(6).double()
        x = torch.randn(2, 6, 4, 2, dtype=torch.float64)
        flat = layer.qkv(x).reshape(2, -1).reshape(2, 8, 9)
        q, k, v = flat[..., :3], flat[..., 3:6], flat[..., 6:]
        q_mark = q.reshape(2, 4, 2, 3).mean(2) / math.sqrt(8)
        k_mark = k.reshape(2, 4, 2, 3).mean(2) / math.sqrt(8)
        k1 = torch.softmax(q @ k_mark.mT, -2)
        k2 = torch.softmax(q_mark @ k_mark.mT, -2)
        k3 = torch.softmax(q_mark @ k.mT, -2)
        mixed = (k1 @ pseudo_inverse(k2, 6)) @ (k3 @ v) + v
        torch.testing.assert_close(layer(x), layer.out(mixed.reshape(2, 3, 4, 2)))

    def test_memory_format_does_not_matter(self) -> None:
        layer = NystromAttention(6)
        x = torch.randn(2, 6, 4, 3)
        torch.testing.assert_close(layer(x), layer(x.contiguous(memory_format=torch.channels_last)))

    @settings(max_examples=25, deadline=None)
    @given(height=st.integers(1, 7), width=st.integers(1, 7), landmarks=st.integers(1, 6))
    def test_any_size(self, height: int, width: int, landmarks: int) -> None:
        layer = NystromAttention(4, landmarks)
        out = layer(torch.randn(2, 4, height, width))
        assert out.shape == (2, 4, height, width)
        assert out.isfinite().all()

    def test_pseudo_inverse_of_softmaxed_matrices(self) -> None:
        matrix = torch.randn(5, 4, 4, dtype=torch.float64).softmax(-2) + torch.eye(
            4, dtype=torch.float64
        )
        torch.testing.assert_close(
            pseudo_inverse(matrix, 12), torch.linalg.pinv(matrix), rtol=1e-5, atol=1e-5
        )

    def test_pseudo_inverse_gradient(self) -> None:
        matrix = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda m: pseudo_inverse(m.softmax(-2), 6), (matrix,))


class TestBatchNorm:
    def test_frozen_statistics_normalise_but_do_not_count(self) -> None:
        layer = BatchNorm(3)
        x = 4 + torch.randn(8, 3, 2, 2)
        with frozen_statistics():
            frozen = layer(x)
        assert layer.running_mean is not None
        assert layer.running_mean.abs().max() == 0
        torch.testing.assert_close(frozen, layer(x))
        assert layer.running_mean.abs().max() > 0.3

    def test_global_moments_are_those_of_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hand-written path for several processes, with one process, equals torch's."""
        torch.manual_seed(0)
        ours, theirs = BatchNorm(3).double(), torch.nn.BatchNorm2d(3).double()
        x = (2 + torch.randn(4, 3, 3, 2, dtype=torch.float64)).requires_grad_()
        monkeypatch.setattr("protoflows.flows.nets.norm.world_size", lambda: 2)
        weight = torch.randn_like(x)
        got, wanted = ours(x), theirs(x)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(
            *(torch.autograd.grad((y * weight).sum(), x)[0] for y in (got, wanted))
        )
        torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


class TestNoise:
    like = torch.zeros(1)

    def test_same_seed_same_draw(self) -> None:
        a, b = (Noise(3, 1.0, 5).normal((4,), self.like) for _ in range(2))
        assert torch.equal(a, b)

    def test_numpys_whole_numbers_are_seeds(self) -> None:
        plain, numpys = (Noise(3, 1.0, s).normal((4,), self.like) for s in (5, np.int64(5)))
        assert torch.equal(plain, numpys)

    def test_temperature_shrinks_towards_the_mean(self) -> None:
        full, half = (Noise(3, t, 5) for t in (1.0, 0.5))
        torch.testing.assert_close(half.normal((4,), self.like), 0.5 * full.normal((4,), self.like))
        torch.testing.assert_close(
            half.uniform((4,), self.like) - 0.5, 0.5 * (full.uniform((4,), self.like) - 0.5)
        )

    def test_one_seed_per_image_is_independent_of_the_batch(self) -> None:
        seeds = torch.tensor([4, 9, 2])
        together = Noise(3, 1.0, seeds)
        whole = [together.uniform((2,), self.like), together.normal((3,), self.like)]
        for i in range(3):
            alone = Noise(1, 1.0, seeds[i : i + 1])
            assert torch.equal(alone.uniform((2,), self.like), whole[0][i : i + 1])
            assert torch.equal(alone.normal((3,), self.like), whole[1][i : i + 1])

    @pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf, "cold"])
    def test_bad_temperature(self, temperature: float) -> None:
        with pytest.raises(ValueError, match="temperature"):
            Noise(1, temperature)

    def test_bad_seeds(self) -> None:
        with pytest.raises(ValueError, match=r"one integer per image, shape \(2,\)"):
            Noise(2, 1.0, torch.tensor([1, 2, 3]))
        with pytest.raises(ValueError, match="seed must be"):
            Noise(2, 1.0, "five")  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), power=st.integers(0, 4))
def test_padding_is_undone_and_repeats_edges(height: int, width: int, power: int) -> None:
    padding = Padding(height, width, 2**power)
    x = torch.arange(height * width).view(1, 1, height, width)
    padded = padding.add(x)
    assert padded.shape[-1] % 2**power == padded.shape[-2] % 2**power == 0
    assert torch.equal(padding.remove(padded), x)
    assert set(padded.flatten().tolist()) == set(x.flatten().tolist())
    assert padded[0, 0, 0, 0] == x[0, 0, 0, 0]
    assert padded[0, 0, -1, -1] == x[0, 0, -1, -1]


class TestFused:
    """Pairs in a joint form do what their two layers do one after the other."""

    @staticmethod
    def layers(channels: int) -> list[Bijection]:
        torch.manual_seed(0)
        net = CouplingNet((channels + 1) // 2, 2 * (channels // 2), 4, 2, 3, attention=True)
        layers: list[Bijection] = [
            ActNorm(channels),
            InvertibleConv(channels),
            AffineCoupling(net),
            SwapHalves(),
        ]
        return [perturb(layer).double().eval() for layer in layers]

    @pytest.mark.parametrize("channels", [2, 5])
    def test_value_inverse_and_gradient(self, channels: int) -> None:
        layers = self.layers(channels)
        steps = fused(layers)
        assert [type(step).__name__ for step in steps] == ["NormalisedConv", "SwappedCoupling"]
        x = torch.randn(2, channels, 3, 2, dtype=torch.float64, requires_grad=True)
        weight = torch.randn_like(x)
        parameters = [p for layer in layers for p in layer.parameters()]
        assert {id(p) for step in steps for p in step.parameters()} == {id(p) for p in parameters}
        found = []
        for chain in (layers, steps):
            z, log_det = x, x.new_zeros(2)
            for layer in chain:
                z, term = layer.rewindable(z, None)
                log_det = log_det if term is None else log_det + term
            loss = (z * weight).sum() + log_det.sum()
            grads = torch.autograd.grad(loss, [x, *parameters], allow_unused=True)
            found.append([z, log_det, *(g for g in grads if g is not None)])
            back = z.detach()
            for layer in reversed(chain):
                back = layer.inverse(back)
            torch.testing.assert_close(back, x.detach())
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)

    def test_inverse_has_the_layers_gradient(self) -> None:
        norm, conv, *_ = self.layers(3)
        z = torch.randn(2, 3, 3, 2, dtype=torch.float64, requires_grad=True)
        weight = torch.randn_like(z)
        inputs = [z, *norm.parameters(), *conv.parameters()]
        apart, joint = norm.inverse(conv.inverse(z)), fused([norm, conv])[0].inverse(z)
        for one, other in zip(
            torch.autograd.grad((apart * weight).sum(), inputs),
            torch.autograd.grad((joint * weight).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(one, other)

    def test_first_batch_initialises(self) -> None:
        norm, conv = ActNorm(3).train(), InvertibleConv(3)
        z, _ = fused([norm, conv])[0].rewindable(5 + 3 * torch.randn(64, 3, 4, 4), None)
        assert norm.initialized
        assert z.mean((0, 2, 3)).abs().max() < 1e-5

    def test_only_what_follows_directly_is_joined(self) -> None:
        norm, conv, swap = ActNorm(2), InvertibleConv(2), SwapHalves()
        assert fused([conv, norm, swap, conv]) == [conv, norm, swap, conv]
