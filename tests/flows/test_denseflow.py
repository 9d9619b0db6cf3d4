"""The whole flow: exact decoding, honest log-determinants, any shape, clear errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protoflows.flows import DenseFlow, DenseFlowConfig, Encoding
from tests.flows.helpers import TINY, GivenNoise, images, log_abs_det, perturb, small_flow

UNIFORM = {"dequantization": "uniform"}


def digits(config: DenseFlowConfig, num: int) -> Tensor:
    """Return real scans, brought to the config's size, channels and levels."""
    from sklearn.datasets import load_digits

    x = torch.from_numpy(load_digits().images[:num]).float()[:, None] / 16
    x = torch.nn.functional.interpolate(x, config.image_shape[1:], mode="bilinear")
    return (
        (x * (config.levels - 1)).round().to(torch.uint8).expand(-1, config.image_shape[0], -1, -1)
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["noise", "digits"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        UNIFORM,
        {"image_shape": (3, 8, 8), "levels": 256},
        {"image_shape": (3, 5, 7), "levels": 256},
        {"noise_growth": 0},
        {"logit_alpha": 0.002},
    ],
    ids=["variational", "uniform", "bytes", "padded", "no noise channels", "logit"],
)
def test_every_pixel_comes_back(changes: dict[str, object], kind: str, training: bool) -> None:
    flow = small_flow(**changes).train(training)
    x = images(flow.config, 16) if kind == "noise" else digits(flow.config, 16)
    with torch.no_grad():
        assert torch.equal(flow.decode(flow.encode(x, seed=3)), x)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_every_pixel_comes_back_at_the_papers_size(training: bool) -> None:
    torch.manual_seed(0)
    flow = perturb(DenseFlow()).train(training)
    assert isinstance(flow, DenseFlow)
    for x in (images(flow.config, 8), digits(flow.config, 8)):
        with torch.no_grad():
            assert torch.equal(flow.decode(flow.encode(x, seed=0)), x)


def test_noise_at_the_edges_of_its_bin_is_no_trouble() -> None:
    """Where u is 0 or within rounding of 1, a floor at decoding would be off by one level."""
    flow = small_flow(**UNIFORM, noise_growth=0).eval()
    x = images(flow.config, 8)
    nearly_one = 1 - 2.0**-24
    for value in (0.0, nearly_one):
        with torch.no_grad():
            encoding = flow(x, GivenNoise(torch.full((8, 16), value)))
        assert torch.equal(flow.decode(encoding), x)


def base_dims(config: DenseFlowConfig) -> int:
    """Count the base draws of one image: the dequantiser's and the appended channels'."""
    channels, height, width = config.image_shape
    total = channels * height * width
    for units in config.units:
        height, width = height // 2, width // 2
        total += (units - 1) * config.noise_growth * height * width
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        UNIFORM,
        {"logit_alpha": 0.01},
        {"units": (3, 1)},
        {"attention": False, "memory": "reversible"},
    ],
)
def test_log_det_is_that_of_the_autograd_jacobian(changes: dict[str, object]) -> None:
    """As a map from all base draws to (z, what transitions put out).

    The log-det is log|det J| plus the densities of both ends.
    """
    flow = small_flow(**changes).double().eval()
    dims = base_dims(flow.config)
    uniform = flow.config.dequantization == "uniform"
    pixels = flow.config.dims
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, dims, generator=generator, dtype=torch.float64)
    if uniform:
        noise[:, :pixels] = torch.rand(2, pixels, generator=generator, dtype=torch.float64)
    x = images(flow.config, 2)
    encoding = flow(x, GivenNoise(noise))

    def outputs(i: int, e: Tensor) -> Tensor:
        enc = flow(x[i : i + 1], GivenNoise(e[None]))
        return torch.cat([enc.latent.flatten(), *(f.flatten() for f in enc.factored)])

    normal = torch.distributions.Normal(0.0, 1.0)
    for i in range(2):
        exact = log_abs_det(lambda e, i=i: outputs(i, e), noise[i])
        drawn = normal.log_prob(noise[i, pixels if uniform else 0 :]).sum()
        put_out = sum(normal.log_prob(f[i]).sum() for f in encoding.factored)
        torch.testing.assert_close(
            encoding.log_det[i], exact - drawn + put_out, rtol=1e-6, atol=1e-9
        )


def test_density_of_a_tiny_flow_sums_to_at_most_one() -> None:
    """Over all 2-level images of four pixels, exp(E[bound]) is a sub-probability.

    So the bound is one.
    """
    config = DenseFlowConfig(
        (1, 2, 2), 2, (1,), (2,), (4,), net_depth=1, net_growth=2, dequantization="uniform"
    )
    torch.manual_seed(0)
    flow = perturb(DenseFlow(config)).eval()
    assert isinstance(flow, DenseFlow)
    with torch.no_grad():
        every = torch.tensor(
            [[i >> b & 1 for b in range(4)] for i in range(16)], dtype=torch.uint8
        ).view(16, 1, 2, 2)
        draws = torch.stack([flow.log_prob(every, seed=s).double() for s in range(400)])
        importance = torch.logsumexp(draws, 0) - torch.tensor(400.0).log()
    assert 0 < draws.mean(0).exp().sum() <= 1
    # Importance weighting is unbiased: what is missing to 1 is mass outside of the unit cube.
    assert draws.mean(0).exp().sum() < importance.exp().sum() <= 1.1


def test_temperature_zero_is_deterministic_and_between_shrinks() -> None:
    flow = small_flow().eval()
    x = images(flow.config, 4)
    with torch.no_grad():
        a, b = flow.encode(x, temperature=0.0), flow.encode(x, temperature=0.0, seed=9)
        assert torch.equal(a.latent, b.latent)
        assert torch.equal(a.log_det, b.log_det)
        assert torch.equal(flow.decode(a), x)
        near, far = (flow.encode(x, temperature=t, seed=1).latent for t in (0.1, 1.0))
    assert (near - a.latent).norm() < (far - a.latent).norm()


def test_seeds_make_noise_repeatable_and_independent_of_the_batch() -> None:
    flow = small_flow().eval()
    x = images(flow.config, 6)
    with torch.no_grad():
        assert torch.equal(flow.encode(x, seed=4).latent, flow.encode(x, seed=4).latent)
        generator = torch.Generator().manual_seed(4)
        assert torch.equal(flow.encode(x, seed=4).latent, flow.encode(x, seed=generator).latent)
        assert not torch.equal(flow.encode(x, seed=4).latent, flow.encode(x, seed=generator).latent)
        seeds = torch.arange(6) + 100
        whole = flow.encode(x, seed=seeds)
        for i in range(6):
            one = flow.encode(x[i : i + 1], seed=seeds[i : i + 1])
            torch.testing.assert_close(one.latent, whole[i].latent, rtol=1e-4, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 5),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    growth=st.integers(0, 3),
    blocks=st.integers(1, 3),
    uniform=st.booleans(),
    attention=st.booleans(),
)
def test_any_shape(
    channels: int, height: int, width: int, growth: int, blocks: int, uniform: bool, attention: bool
) -> None:
    config = DenseFlowConfig(
        image_shape=(channels, height, width),
        levels=256,
        units=(2,) * blocks,
        couplings=(1,) * blocks,
        mid_channels=(4,) * blocks,
        noise_growth=growth,
        net_depth=1,
        net_growth=2,
        attention=attention,
        dequantization="uniform" if uniform else "variational",
        dequantization_couplings=1,
        dequantization_channels=4,
        dequantization_depth=1,
        dequantization_growth=2,
        context_growth=2,
    )
    flow = DenseFlow(config).train()
    x = images(config, 3)
    encoding = flow.encode(x, seed=0)
    assert encoding.latent.shape == (3, *config.latent_shape)
    assert encoding.log_det.isfinite().all()
    encoding.log_det.sum().backward()
    assert torch.equal(flow.decode(encoding.detach()), x)
    assert flow.decode_latent(encoding.latent.detach(), temperature=0.7, seed=1).shape == x.shape
    assert flow.sample(2, seed=0).shape == (2, *config.image_shape)


def test_no_images_at_all() -> None:
    flow = small_flow().eval()
    with torch.no_grad():
        encoding = flow.encode(images(TINY, 0), seed=0)
        assert encoding.latent.shape == (0, *TINY.latent_shape)
        assert flow.decode(encoding).shape == (0, *TINY.image_shape)


def test_paper_configuration() -> None:
    config = DenseFlowConfig()
    assert config.latent_shape == (308, 4, 4)
    assert config.latent_dims == 4928
    assert DenseFlowConfig(image_shape=(3, 64, 64)).latent_shape == (308, 8, 8)
    with torch.device("meta"):
        flow = DenseFlow(config)
    assert round(sum(p.numel() for p in flow.parameters()) / 1e6, 1) == 130.6


def test_bfloat16_nets_keep_the_likelihood() -> None:
    flow = small_flow(image_shape=(3, 16, 16), levels=256, mid_channels=(16, 16)).eval()
    low = DenseFlow(DenseFlowConfig(**{**vars(flow.config), "net_dtype": "bfloat16"})).eval()
    low.load_state_dict(flow.state_dict())
    x = images(flow.config, 64)
    with torch.no_grad():
        a, b = flow.log_prob(x, seed=0), low.log_prob(x, seed=0)
    bits = (a - b).mean().abs() / (flow.config.dims * torch.tensor(2.0).log())
    assert bits < 0.01
    assert b.dtype == torch.float32


@pytest.mark.parametrize("dequantization", ["variational", "uniform"])
def test_nets_that_trained_in_bfloat16_decode_exactly_in_float32(dequantization: str) -> None:
    low = small_flow(dequantization=dequantization, net_dtype="bfloat16").eval()
    flow = small_flow(dequantization=dequantization).eval()
    flow.load_state_dict(low.state_dict())
    x = digits(flow.config, 6)
    same = low.compute_in("float32")
    assert same is low
    assert low.config == flow.config
    assert torch.equal(low.encode(x, seed=0).latent, flow.encode(x, seed=0).latent)
    assert torch.equal(low.decode(low.encode(x, seed=1)), x)
    assert low.compute_in("bfloat16").config.net_dtype == "bfloat16"
    assert not torch.equal(low.encode(x, seed=0).latent, flow.encode(x, seed=0).latent)


def test_autocast_does_not_reach_scales_and_log_dets() -> None:
    flow = small_flow().train()
    x = images(flow.config, 4)
    plain = flow.encode(x, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = flow.encode(x, seed=0)
    assert cast.latent.dtype == torch.float32
    assert torch.equal(plain.latent, cast.latent)
    assert torch.equal(plain.log_det, cast.log_det)


def test_float64_all_the_way() -> None:
    flow = small_flow().double().eval()
    encoding = flow.encode(images(flow.config, 2), seed=0)
    assert encoding.latent.dtype == encoding.log_det.dtype == torch.float64


def test_decoding_in_training_mode_leaves_statistics_alone() -> None:
    flow = small_flow().train()
    with torch.no_grad():
        encoding = flow.encode(images(flow.config, 8), seed=0)
        before = {k: v.clone() for k, v in flow.named_buffers()}
        flow.decode(encoding)
    for name, value in flow.named_buffers():
        assert torch.equal(value, before[name]), name


def test_save_and_load_give_the_same_encoding() -> None:
    flow = small_flow().eval()
    other = DenseFlow(flow.config)
    other.load_state_dict(flow.state_dict())
    x = images(flow.config, 4)
    with torch.no_grad():
        assert torch.equal(flow.encode(x, seed=0).latent, other.eval().encode(x, seed=0).latent)


def test_constant_images_start_well() -> None:
    flow = DenseFlow(TINY).train()
    encoding = flow.encode(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), seed=0)
    assert encoding.latent.isfinite().all()
    assert encoding.log_det.isfinite().all()


def test_print_is_a_readable_tree() -> None:
    text = repr(small_flow())
    assert "image_shape=(1, 4, 4), latent_shape=(12, 1, 1), memory=store" in text
    assert "DenseFlowBlock" in text


class TestErrors:
    flow = small_flow().eval()

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (
                torch.zeros(2, 1, 4, 5, dtype=torch.uint8),
                r"x must have shape \(N, 1, 4, 4\), got \(2, 1, 4, 5\)",
            ),
            (torch.zeros(1, 4, 4, dtype=torch.uint8), r"x must have shape"),
            ([[0]], "x must have shape .* got list"),
            (torch.zeros(2, 1, 4, 4), r"x must hold integers in 0…16 \(uint8\), got torch.float32"),
            (torch.full((2, 1, 4, 4), 17, dtype=torch.uint8), "values from 17 to 17"),
            (torch.full((2, 1, 4, 4), -1), "values from -1 to -1"),
        ],
    )
    def test_bad_images(self, x: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.flow.encode(x)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_bad_latents(self, bad: float) -> None:
        z = torch.zeros(1, *self.flow.config.latent_shape)
        z[0, 0, 0, 0] = bad
        with pytest.raises(ValueError, match="NaN or infinite"):
            self.flow.decode_latent(z)
        with pytest.raises(
            ValueError, match=r"latent must have shape \(N, 12, 1, 1\), got \(1, 3\)"
        ):
            self.flow.decode_latent(torch.zeros(1, 3))

    def test_bad_encoding(self) -> None:
        encoding = self.flow.encode(images(TINY, 1), seed=0)
        cut = Encoding(encoding.latent, encoding.log_det, (), encoding.dequantization)
        with pytest.raises(ValueError, match=r"encoding\.factored must hold 1 tensors, got 0"):
            self.flow.decode(cut)
        with pytest.raises(ValueError, match="latent must have shape"):
            encoding.replace_latent(torch.zeros(1, 2, 1, 1))

    @pytest.mark.parametrize("name", ["factored", "dequantization"])
    def test_other_sizes_and_values_than_numbers(self, name: str) -> None:
        encoding = self.flow.encode(images(TINY, 2), seed=0)
        value = encoding.factored[0] if name == "factored" else encoding.dequantization
        for bad, message in (
            (value[:1], r"must have shape \(2, .*, got \(1, "),
            (value[..., :0], "must have shape"),
            (value * float("nan"), "holds NaN or infinite values"),
        ):
            broken = replace(encoding, **{name: (bad,) if name == "factored" else bad})
            with pytest.raises(ValueError, match=rf"encoding\.{name}.*{message}"):
                self.flow.decode(broken)

    def test_latents_that_are_none(self) -> None:
        with pytest.raises(ValueError, match="latent must have shape .*, got list"):
            self.flow.decode_latent([[0.0]])  # type: ignore[arg-type]
        # One number for a whole map would broadcast, to a density of nothing.
        with pytest.raises(ValueError, match=r"latent must have shape .*, got \(1, 1, 1, 1\)"):
            self.flow.base_log_prob(torch.zeros(1, 1, 1, 1))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"levels": 257}, "levels must be in 2…256"),
            ({"units": (1,)}, "one entry per block"),
            ({"couplings": (0, 1)}, "couplings must be whole numbers"),
            ({"image_shape": (3, 32)}, r"image_shape must be \(channels, height, width\)"),
            ({"memory": "none"}, "memory must be one of store, checkpoint, reversible"),
            ({"net_dtype": "float16"}, "net_dtype must be one of"),
            ({"noise_growth": -1}, "noise_growth must be ≥ 0"),
            ({"logit_alpha": 0.5}, "logit_alpha must be at least 0 and below 0.5"),
            ({"mid_channels": (1, 1)}, "mid_channels must be ≥ 2 with attention"),
            ({"units": 2}, "units must be whole numbers ≥ 1, got 2"),
            ({"levels": "17"}, "levels must be a whole number, got '17'"),
            ({"net_growth": 1.5}, "net_growth must be a whole number, got 1.5"),
            ({"logit_alpha": "0"}, "logit_alpha must be a number, got '0'"),
            ({"attention": "no"}, "attention must be true or false, got 'no'"),
        ],
    )
    def test_bad_configuration(self, changes: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            DenseFlowConfig(**{**vars(TINY), **changes})

    def test_configuration_is_frozen_and_takes_lists(self) -> None:
        config = DenseFlowConfig(
            image_shape=[1, 8, 8],  # type: ignore[arg-type]
            units=[1, 1],  # type: ignore[arg-type]
            couplings=[1, 1],  # type: ignore[arg-type]
            mid_channels=[4, 4],  # type: ignore[arg-type]
        )
        assert config.units == (1, 1)
        with pytest.raises(AttributeError):
            config.levels = 3  # type: ignore[misc]


class TestEncoding:
    flow = small_flow().eval()

    def test_selecting_and_joining(self) -> None:
        x = images(TINY, 5)
        with torch.no_grad():
            encoding = self.flow.encode(x, seed=0)
        assert len(encoding[-1]) == len(encoding[2]) == 1
        again = Encoding.cat([encoding[:2], encoding[torch.tensor([2, 3, 4])]])
        assert torch.equal(self.flow.decode(again), x)
        assert torch.equal(
            encoding.replace_latent(encoding.latent).to("cpu").latent, encoding.latent
        )
