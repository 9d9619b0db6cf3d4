"""The memory modes give one gradient, and the reversible one keeps nothing in between."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from protoflows.flows import (
    ActNorm,
    Chain,
    DenseFlow,
    DenseFlowConfig,
    InvertibleConv,
    RoundTripWarning,
)
from protoflows.flows.nets import CouplingNet
from protoflows.flows.reversible import round_trip_error
from tests.flows.helpers import TINY, images, small_flow

MIDDLE = DenseFlowConfig(
    image_shape=(3, 16, 16),
    units=(3, 2),
    couplings=(2, 3),
    mid_channels=(12, 16),
    noise_growth=4,
    net_depth=3,
    net_growth=16,
    dequantization_channels=16,
    dequantization_depth=2,
    dequantization_growth=8,
)


def twin(flow: DenseFlow, **changes: object) -> DenseFlow:
    other = DenseFlow(DenseFlowConfig(**{**vars(flow.config), **changes}))
    other.load_state_dict(flow.state_dict())
    return other.to(flow.loc.dtype).train(flow.training)


def gradients(flow: DenseFlow, x: Tensor, seed: int = 0) -> list[Tensor]:
    flow.zero_grad()
    (-flow.log_prob(x, seed=seed).mean()).backward()
    return [p.grad.clone() for p in flow.parameters() if p.grad is not None]


def cosine(a: list[Tensor], b: list[Tensor]) -> float:
    left, right = (torch.cat([g.double().flatten() for g in grads]) for grads in (a, b))
    return torch.cosine_similarity(left, right, dim=0).item()


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
@pytest.mark.parametrize("config", [TINY, MIDDLE], ids=["tiny", "middle"])
def test_gradient_in_float64(config: DenseFlowConfig, memory: str) -> None:
    store = small_flow(config).double().train()
    x = images(config, 4)
    expected = gradients(store, x)
    got = gradients(twin(store, memory=memory), x)
    assert len(got) == len(expected) == len(list(store.parameters()))
    for g, w in zip(got, expected, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_gradient_in_float32(memory: str) -> None:
    store = small_flow(MIDDLE).train()
    x = images(MIDDLE, 8)
    expected = gradients(store, x)
    got = gradients(twin(store, memory=memory), x)
    whole = sum(w.norm().square() for w in expected).sqrt()
    error = sum((g - w).norm().square() for g, w in zip(got, expected, strict=True)).sqrt() / whole
    assert error < 1e-2
    for g, w in zip(got, expected, strict=True):
        if w.norm() > 1e-6 * whole:
            assert torch.cosine_similarity(g.flatten(), w.flatten(), dim=0) > 0.9999


def test_nets_see_the_very_inputs_again() -> None:
    """With maps carried in float64, the reversible gradient differs by its own rounding alone."""
    store = small_flow(MIDDLE).train()
    x = images(MIDDLE, 8)
    seen: dict[str, list[Tensor]] = {"store": [], "reversible": []}
    found = {}
    for memory, inputs in seen.items():
        flow = twin(store, memory=memory)
        for block in flow.blocks:
            for module in block.modules():
                if isinstance(module, CouplingNet):
                    module.register_forward_pre_hook(
                        lambda _, args, inputs=inputs: inputs.append(args[0].detach().clone())
                    )
        found[memory] = gradients(flow, x)
    forward, again = seen["reversible"][: len(seen["store"])], seen["reversible"][::-1]
    for a, b, c in zip(seen["store"], forward, again, strict=False):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    whole = torch.cat([g.flatten() for g in found["store"]]).norm()
    for g, w in zip(found["reversible"], found["store"], strict=True):
        assert (g - w).norm() < 1e-5 * whole


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_what_maps_are_carried_in_stays_inside_of_a_chain(memory: str) -> None:
    x = images(TINY, 4)
    for net_dtype, carried in (("float32", torch.float64), ("bfloat16", torch.float32)):
        flow = small_flow(memory=memory, net_dtype=net_dtype).train()
        unit = flow.blocks[0].units[0]  # type: ignore[union-attr, index]
        assert isinstance(unit, Chain)
        assert unit.carried_dtype(torch.zeros(())) == carried
        enc = flow.encode(x, seed=0)
        assert {enc.latent.dtype, enc.log_det.dtype} == {torch.float32}
        with torch.no_grad():
            without = flow.encode(x, seed=0)
        assert torch.equal(enc.latent, without.latent)


def test_gradient_with_bfloat16_nets() -> None:
    store = small_flow(MIDDLE, net_dtype="bfloat16").train()
    x = images(MIDDLE, 8)
    assert cosine(gradients(store, x), gradients(twin(store, memory="reversible"), x)) > 0.99


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_running_statistics_are_counted_once(memory: str) -> None:
    flow = small_flow(memory=memory).train()
    plain = twin(flow, memory="store")
    x = images(TINY, 8)
    gradients(flow, x)
    with torch.no_grad():
        plain.log_prob(x, seed=0)
    for (name, got), wanted in zip(flow.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_first_step_initialises_actnorm_as_store_does(memory: str) -> None:
    torch.manual_seed(0)
    store = DenseFlow(TINY).train()
    other = twin(store, memory=memory)
    x = images(TINY, 16)
    expected, got = gradients(store, x), gradients(other, x)
    assert all(m.initialized for m in other.modules() if isinstance(m, ActNorm))
    assert cosine(expected, got) > 0.999999


@pytest.mark.parametrize("training", [True, False])
def test_gradient_after_steps_of_a_fused_optimizer(training: bool) -> None:
    """Which change weights and leave no trace: nothing may be left of those before."""
    flow = small_flow(MIDDLE, memory="reversible").train(training)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-2, fused=True)
    x = images(MIDDLE, 8)
    for _ in range(3):
        gradients(flow, x)
        optimizer.step()
    expected, got = gradients(twin(flow, memory="store"), x), gradients(flow, x)
    whole = torch.cat([w.flatten() for w in expected]).norm()
    for g, w in zip(got, expected, strict=True):
        assert (g - w).norm() < 1e-5 * whole
    with torch.no_grad():
        assert torch.equal(flow.decode(flow.encode(x, seed=1)), x)


def test_accumulation_adds_up() -> None:
    flow = small_flow(memory="reversible").double().train()
    x = images(TINY, 4)
    once = gradients(flow, x)
    flow.zero_grad()
    for _ in range(2):
        (-flow.log_prob(x, seed=0).mean()).backward()
    for p, g in zip(flow.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)


def test_hooks_see_each_parameters_gradient_once() -> None:
    """DistributedDataParallel hangs on exactly these hooks."""
    flow = small_flow(memory="reversible").train()
    calls: dict[str, int] = {}
    for name, p in flow.named_parameters():
        p.register_post_accumulate_grad_hook(
            lambda _, name=name: calls.__setitem__(name, calls.get(name, 0) + 1)
        )
    gradients(flow, images(TINY, 4))
    assert calls == {name: 1 for name, _ in flow.named_parameters()}


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_autocast_around_the_forward_pass_changes_no_gradient(memory: str) -> None:
    """Nor does it around the backward pass, as far as the recomputation goes."""
    flow = small_flow(memory=memory).train()
    x = images(TINY, 4)
    expected = gradients(small_flow().train(), x)
    with torch.autocast("cpu", torch.bfloat16):
        loss = -flow.log_prob(x, seed=0).mean()
    loss.backward()
    assert cosine(expected, [p.grad for p in flow.parameters() if p.grad is not None]) > 0.999999


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_autocast_around_the_backward_pass_does_no_harm(memory: str) -> None:
    flow = small_flow(memory=memory).train()
    x = images(TINY, 4)
    expected = gradients(small_flow().train(), x)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(flow, x)
    # Where nothing is computed again, torch's own backward formulas round to 16 bits.
    assert cosine(expected, got) > (0.9999 if memory == "reversible" else 0.999)


def test_frozen_parameters_get_no_gradient() -> None:
    flow = small_flow(memory="reversible").train()
    frozen = [p for name, p in flow.named_parameters() if "project_in" in name]
    for p in frozen:
        p.requires_grad_(False)
    (-flow.log_prob(images(TINY, 4), seed=0).mean()).backward()
    assert all(p.grad is None for p in frozen)
    assert all(p.grad is not None for p in flow.parameters() if p.requires_grad)


def test_reversible_keeps_the_ends_of_a_chain_alone() -> None:
    """What autograd holds does not grow with the number of couplings; stored activations do."""

    def saved_elements(memory: str, couplings: int) -> int:
        flow = small_flow(
            MIDDLE,
            memory=memory,
            units=(2, 1),
            couplings=(couplings, couplings),
            dequantization="uniform",
        ).train()
        kept: dict[int, int] = {}
        parameters = {p.data_ptr() for p in flow.parameters()}

        def pack(t: Tensor) -> Tensor:
            # Weights of 1x1 convolutions (their log-dets' factorisation) are the model's, not the
            # images'.
            if t.untyped_storage().data_ptr() not in parameters and len(t) == 8 and t.dim() == 4:
                kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = flow.log_prob(images(flow.config, 8), seed=0).sum()
        total = sum(kept.values())
        loss.backward()
        return total

    assert saved_elements("reversible", 6) == saved_elements("reversible", 3)
    assert saved_elements("store", 6) > 1.7 * saved_elements("store", 3)
    assert saved_elements("reversible", 6) < 0.1 * saved_elements("store", 6)


class _Drifting(InvertibleConv):
    """A layer whose inverse is wrong by a given amount."""

    drift = 0.0

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        return super().inverse(z, context) + self.drift


@pytest.mark.parametrize("drift", [0.3, float("nan")])
def test_untrusted_round_trip_is_reported_and_not_trained_on(drift: float) -> None:
    torch.manual_seed(0)
    layer = _Drifting(4)
    store, chain = (Chain([layer, ActNorm(4).eval()], memory) for memory in ("store", "reversible"))
    x = torch.randn(2, 4, 3, 3)

    def gradient(c: Chain) -> Tensor:
        z, log_det = c(x.clone().requires_grad_())
        return torch.autograd.grad(z.square().sum() + log_det.sum(), layer.weight)[0]

    expected = gradient(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(gradient(chain), expected)  # a sound inverse says nothing
    layer.drift = drift
    with pytest.warns(RoundTripWarning, match="misses its input by"):
        got = gradient(chain)
    torch.testing.assert_close(got, expected)


def test_round_trip_error_is_relative_to_the_rms() -> None:
    true = torch.tensor([3.0, -3.0])
    assert round_trip_error(true + torch.tensor([0.3, -0.3]), true) == pytest.approx(0.1)
    assert not round_trip_error(true * float("nan"), true) <= 1


def test_modes_do_not_matter_without_gradient() -> None:
    flow = small_flow(MIDDLE).eval()
    x = images(MIDDLE, 2)
    with torch.no_grad():
        expected = flow.encode(x, seed=0)
        for memory in ("checkpoint", "reversible"):
            assert torch.equal(twin(flow, memory=memory).encode(x, seed=0).latent, expected.latent)


def test_chain_of_no_layers_is_the_identity() -> None:
    x = torch.randn(2, 3, 2, 2)
    z, log_det = Chain([])(x)
    assert torch.equal(z, x)
    assert log_det.tolist() == [0, 0]
    assert isinstance(Chain([]).layers, nn.ModuleList)
