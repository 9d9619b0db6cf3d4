"""C classes x K Gaussians over the latent: parameters, masks and every density."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protoflows.prototypes.config import PrototypeConfig
from protoflows.prototypes.densities import accumulation_dtype, gaussian_log_prob

_NARROW = (torch.float16, torch.bfloat16)
# A standard deviation at the floor is stored this far (relatively) above it: its log stays finite.
_FLOOR_MARGIN = 1e-6


class MixtureDropout(NamedTuple):
    """One draw of the training-time dropouts, to be shared by all densities of a step.

    Attributes:
        components: (N, C, K), True where a prototype is visible to an image; None for all.
        dims: (N, D), the factor of each latent dimension's term (0 left out); None for all ones.
    """

    components: Tensor | None
    dims: Tensor | None


class ClassMixtures(nn.Module):
    """A Gaussian mixture per class, whose components are the prototypes (`eq:prototypes`).

    Covariances are diagonal, with std = min_std + exp(log_std): always above the floor, smooth, and
    any value above it can be stored. Prototypes that were pruned or switched off stay where they
    are, so indices keep their meaning; `mask` is False there, their densities are -inf and their
    gradients 0. Densities come in the widest float of the device (see `gaussian_log_prob`).

    Args:
        num_classes: number of classes (C).
        num_dims: latent dimensions (D); a latent (N, c, h, w) is flattened in that order.
        config: number of prototypes, floors, priors and dropouts.
        seed: seed of the means, which start from N(0, 1).

    >>> mixtures = ClassMixtures(2, 3, PrototypeConfig(num_prototypes=4))
    >>> mixtures.log_prob(torch.zeros(5, 3)).shape
    torch.Size([5, 2, 4])
    """

    mask: Tensor
    log_prior: Tensor

    def __init__(
        self,
        num_classes: int,
        num_dims: int,
        config: PrototypeConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        config = PrototypeConfig() if config is None else config
        if num_classes < 1 or num_dims < 1:
            raise ValueError(
                f"num_classes and num_dims must be at least 1, got {num_classes} and {num_dims}"
            )
        self.config = config
        shape = (num_classes, config.num_prototypes, num_dims)
        generator = torch.Generator().manual_seed(seed)
        self.mean = nn.Parameter(torch.randn(shape, generator=generator))
        self.log_std = nn.Parameter(torch.empty(shape))
        self.logits = nn.Parameter(torch.zeros(shape[:2]))
        self.register_buffer("mask", torch.ones(shape[:2], dtype=torch.bool))
        self.register_buffer("log_prior", torch.full((num_classes,), -math.log(num_classes)))
        self._store_std(torch.full(shape, config.initial_std))
        if isinstance(config.prior, tuple):
            self.set_prior(torch.tensor(config.prior))
        self.register_load_state_dict_post_hook(_refuse_dead_class)

    # ---- sizes and parameters -------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return self.mean.shape[0]

    @property
    def num_prototypes(self) -> int:
        """Prototypes per class, K, counting those switched off."""
        return self.mean.shape[1]

    @property
    def num_dims(self) -> int:
        """Latent dimensions, D."""
        return self.mean.shape[2]

    @property
    def num_alive(self) -> Tensor:
        """Living prototypes of each class, (C,)."""
        return self.mask.sum(dim=1)

    @property
    def std(self) -> Tensor:
        """Standard deviations (C, K, D), never below `config.min_std`."""
        return self.log_std.exp() + self.config.min_std

    @property
    def variance(self) -> Tensor:
        """Variances (C, K, D), the diagonals of the covariances."""
        return self.std.square()

    @property
    def log_weights(self) -> Tensor:
        """Log mixture weights (C, K): log-softmax over the living prototypes, -inf elsewhere."""
        return self.logits.masked_fill(~self.mask, -math.inf).log_softmax(dim=1)

    @property
    def weights(self) -> Tensor:
        """Mixture weights (C, K); each class sums to one."""
        return self.log_weights.exp()

    # ---- densities ------------------------------------------------------------------------

    def log_prob(self, z: Tensor, dropout: MixtureDropout | None = None) -> Tensor:
        """log N(z; c, k) for every prototype, (N, C, K); -inf where a prototype is masked.

        Args:
            z: latents, (N, D) or (N, c, h, w).
            dropout: a draw of `draw_dropout`; only its `dims` matter here.
        """
        table = gaussian_log_prob(
            self.flatten(z),
            self.mean.flatten(0, 1),
            self.std.flatten(0, 1),
            None if dropout is None else dropout.dims,
        )
        return table.unflatten(1, self.mask.shape).masked_fill(~self.mask, -math.inf)

    def class_log_prob(self, z: Tensor, dropout: MixtureDropout | None = None) -> Tensor:
        """log p(z | y) for every class, (N, C) (`eq:gmmClass`).

        Args:
            z: latents, (N, D) or (N, c, h, w).
            dropout: a draw of `draw_dropout`.
        """
        return self.mix(self.log_prob(z, dropout), dropout)

    def mix(self, log_prob: Tensor, dropout: MixtureDropout | None = None) -> Tensor:
        """`eq:gmmClass` from a table that `log_prob` made: (N, C, K) -> (N, C).

        Hidden prototypes pass their weight on to the visible ones of their class, so that what
        remains is a normalised density.
        """
        log_weights = self.log_weights
        if dropout is None or dropout.components is None:
            return (log_weights + log_prob).logsumexp(dim=2)
        log_weights = log_weights.masked_fill(~dropout.components, -math.inf)
        return (log_weights + log_prob).logsumexp(dim=2) - log_weights.logsumexp(dim=2)

    def posterior(self, z: Tensor, dropout: MixtureDropout | None = None) -> Tensor:
        """log p(y | z) for every class, (N, C) (`eq:gmmTotal`, with the class priors).

        Args:
            z: latents, (N, D) or (N, c, h, w).
            dropout: a draw of `draw_dropout`.
        """
        return self.classify(self.class_log_prob(z, dropout))

    def classify(self, class_log_prob: Tensor) -> Tensor:
        """Bayes' rule on log p(z | y) (..., C): log p(y | z) (`eq:gmmTotal`)."""
        return (class_log_prob + self.log_prior).log_softmax(dim=-1)

    def marginal_log_prob(self, z: Tensor) -> Tensor:
        """log p(z) = log sum_c p(c) p(z | c), (N,)."""
        return (self.class_log_prob(z) + self.log_prior).logsumexp(dim=-1)

    def responsibilities(self, z: Tensor) -> Tensor:
        """p(k | z, c) within each class, (N, C, K): sums to one over K, 0 where masked."""
        return (self.log_weights + self.log_prob(z)).softmax(dim=2)

    def flatten(self, z: Tensor) -> Tensor:
        """A latent (N, D) or (N, c, h, w) as (N, D), or a ValueError that says what is wrong."""
        if z.ndim < 2 or z[:1].numel() != self.num_dims * len(z[:1]):
            raise ValueError(
                f"z must be (N, {self.num_dims}) or (N, c, h, w) with c h w = {self.num_dims}, "
                f"got {tuple(z.shape)}"
            )
        if not z.is_floating_point():
            raise ValueError(f"z must be a floating-point latent, got {z.dtype}")
        return z.reshape(len(z), self.num_dims)

    # ---- training-time dropouts -----------------------------------------------------------

    def draw_dropout(self, num_images: int, generator: torch.Generator) -> MixtureDropout | None:
        """Draw both dropouts for a batch; None in eval mode or where both are off.

        A latent dimension is left out for all prototypes of an image together: the ratios between
        prototypes, which decide the class, are then those of one and the same lower-dimensional
        density. Among prototypes that would all be hidden, the living one with the largest draw
        stays.

        Args:
            num_images: batch size N.
            generator: source of randomness.
        """
        hide, leave_out = self.config.prototype_dropout, self.config.latent_dropout
        if not self.training or (hide == 0 and leave_out == 0):
            return None
        components = dims = None
        place = generator.device
        if hide > 0:
            draw = torch.rand((num_images, *self.mask.shape), generator=generator, device=place)
            draw = draw.to(self.mask.device).masked_fill(~self.mask, -1.0)
            components = (draw >= hide) | (draw == draw.amax(dim=2, keepdim=True))
            components &= self.mask
        if leave_out > 0:
            draw = torch.rand((num_images, self.num_dims), generator=generator, device=place)
            dims = (draw >= leave_out).to(device=self.mean.device, dtype=self.mean.dtype) / (
                1 - leave_out
            )
        return MixtureDropout(components, dims)

    # ---- changing the mixtures ------------------------------------------------------------

    @torch.no_grad()
    def set_mixture(
        self, mean: Tensor, std: Tensor, logits: Tensor, mask: Tensor | None = None
    ) -> None:
        """Replace all parameters, in place.

        Args:
            mean: (C, K, D), finite.
            std: (C, K, D), at least `config.min_std`.
            logits: (C, K), unnormalised log weights, finite.
            mask: (C, K) bool, True for living prototypes; all live when None.
        """
        shape = tuple(self.mean.shape)
        expected = {"mean": (mean, shape), "std": (std, shape), "logits": (logits, shape[:2])}
        for name, (value, want) in expected.items():
            if tuple(value.shape) != want:
                raise ValueError(f"{name} must have shape {want}, got {tuple(value.shape)}")
            if not bool(value.isfinite().all()):
                raise ValueError(f"{name} must be finite, got NaN or infinite values")
        floor = self.config.min_std
        if float(std.min()) < floor * (1 - _FLOOR_MARGIN):
            raise ValueError(
                f"std must be at least min_std = {floor}, got {float(std.min())}; "
                "build the mixtures with a smaller PrototypeConfig.min_std"
            )
        self.set_mask(torch.ones_like(self.mask) if mask is None else mask)
        self._store_std(std)
        self.mean.copy_(mean)
        self.logits.copy_(logits)

    @torch.no_grad()
    def set_mask(self, mask: Tensor) -> None:
        """Say which prototypes live; weights renormalise by themselves.

        Args:
            mask: (C, K) bool, at least one True per class.
        """
        if mask.dtype != torch.bool or mask.shape != self.mask.shape:
            raise ValueError(
                f"mask must be bool with shape {tuple(self.mask.shape)}, "
                f"got {mask.dtype} with shape {tuple(mask.shape)}"
            )
        _check_alive(mask)
        self.mask.copy_(mask)

    @torch.no_grad()
    def set_prior(self, prior: Tensor) -> None:
        """Set the class probabilities.

        Args:
            prior: (C,) positive numbers, normalised here.
        """
        if tuple(prior.shape) != (self.num_classes,):
            raise ValueError(
                f"prior must hold one number for each of the {self.num_classes} classes, "
                f"got shape {tuple(prior.shape)}"
            )
        if not bool((prior.isfinite() & (prior > 0)).all()):
            raise ValueError(f"prior must hold positive finite numbers, got {prior.tolist()}")
        self.log_prior.copy_((prior / prior.sum()).log())

    def _store_std(self, std: Tensor) -> None:
        floor = self.config.min_std
        with torch.no_grad():
            wide = std.to(accumulation_dtype(std.device))
            self.log_std.copy_((wide - floor).clamp_min(floor * _FLOOR_MARGIN).log())

    # ---- module plumbing ------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ClassMixtures:
        """Follow moves and casts, except to 16 bits, which cannot hold the densities."""

        def keep_wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in _NARROW else moved

        super()._apply(keep_wide, recurse)
        return self

    def extra_repr(self) -> str:
        """Sizes, living prototypes and options, for `print(model)`."""
        parts = [
            f"num_classes={self.num_classes}",
            f"num_prototypes={self.num_prototypes}",
            f"num_dims={self.num_dims}",
            f"alive={int(self.mask.sum())}/{self.mask.numel()}",
            f"prior={self.config.prior!r}",
            f"min_std={self.config.min_std:g}",
        ]
        for name in ("prototype_dropout", "latent_dropout"):
            if getattr(self.config, name):
                parts.append(f"{name}={getattr(self.config, name):g}")
        return ", ".join(parts)


def _check_alive(mask: Tensor) -> None:
    dead = (~mask.any(dim=1)).nonzero().flatten().tolist()
    if dead:
        raise ValueError(f"mask must leave every class a prototype, but classes {dead} have none")


def _refuse_dead_class(module: nn.Module, _: Any) -> None:
    if isinstance(module, ClassMixtures) and not module.mask.is_meta:
        _check_alive(module.mask)
