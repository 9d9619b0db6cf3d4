"""ProtoFlow: a flow, prototypes in its latent, and Bayes' rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from protoflows.flows import DenseFlow, Encoding, Noise
from protoflows.flows.noise import Seed
from protoflows.model.config import ModelConfig
from protoflows.model.edit import edit_prototypes, keep_prototypes
from protoflows.model.extras import Extras
from protoflows.model.montecarlo import (
    Scores,
    average_draws,
    check_labels,
    check_rule,
    evaluating,
)
from protoflows.model.sampling import (
    DrawnLatents,
    as_generator,
    check_prototype,
    draw_latents,
)
from protoflows.model.saving import HubModel
from protoflows.model.temperature import temper
from protoflows.prototypes import ClassMixtures, MixtureDropout

# Latents decoded at once by `sample`.
_DECODE_BATCH = 256


class ProtoFlow(nn.Module, HubModel):
    """A classifier that can draw what it knows: log p(x|c) by a flow and a mixture per class.

    `encode` maps images to latents with log-determinants, `mixtures` hold C x K Gaussians there,
    the prototypes, and Bayes' rule makes the classifier (`eq:gmmTotal`):

        log p(x|c) = log_det + log p(z|c),        p(y|x) = p(x|y) p(y) / Σ_c p(x|c) p(c).

    Densities come in the device's widest float. The flow's own unconditional normal has no part in
    them; it is kept, frozen, for the density of the flow alone.

    Args:
        config: What the model is made of.
        flow: A flow to build on, of the configuration `config.flow`; a new one when None.

    Attributes:
        config: May be replaced, to change temperatures or names.
        flow: x → z.
        mixtures: The prototypes.
        extras: What explanations need of the training data, where it is known.

    >>> from protoflows.flows import DenseFlowConfig
    >>> flow = DenseFlowConfig((1, 4, 4), 17, (1,), (2,), (4,), net_depth=1, net_growth=4)
    >>> model = ProtoFlow(ModelConfig(3, flow, class_names=("a", "b", "c"))).eval()
    >>> model.predict_proba(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: ModelConfig, flow: DenseFlow | None = None) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise ValueError(f"config must be a ModelConfig, got {type(config).__name__}")
        if flow is not None and flow.config != config.flow:
            raise ValueError(f"flow must be built of config.flow, {config.flow}; got {flow.config}")
        self.config = config
        self.flow = DenseFlow(config.flow) if flow is None else flow
        self.flow.loc.requires_grad_(False)
        self.flow.log_scale.requires_grad_(False)
        self.mixtures = ClassMixtures(
            config.num_classes, config.flow.latent_dims, config.prototypes
        )
        self.extras: Extras | None = None

    def compute_in(self, net_dtype: Literal["float32", "bfloat16"]) -> ProtoFlow:
        """Let the flow's nets compute in another precision, see `DenseFlow.compute_in`."""
        self.flow.compute_in(net_dtype)
        self.config = replace(self.config, flow=self.flow.config)
        return self

    def extra_repr(self) -> str:
        """Classes, and temperatures where there are any."""
        names = self.config.class_names
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        parts = [f"classes=({shown})"]
        for name in ("logit_temperature", "variance_temperature"):
            if getattr(self.config, name) != 1:
                parts.append(f"{name}={getattr(self.config, name):g}")
        return ", ".join(parts)

    # ---- images and latents ---------------------------------------------------------------

    def forward(self, x: Tensor, noise: Noise) -> Encoding:
        """Encode images that are known to be valid: the path that training takes."""
        encoding: Encoding = self.flow(x, noise)
        return encoding

    def encode(self, x: Tensor, *, temperature: float = 1.0, seed: Seed = None) -> Encoding:
        """Map images to latents, see `DenseFlow.encode`."""
        return self.flow.encode(x, temperature=temperature, seed=seed)

    def decode(self, encoding: Encoding) -> Tensor:
        """Map an encoding back to its uint8 images, pixel for pixel."""
        return self.flow.decode(encoding)

    def decode_latent(self, z: Tensor, *, temperature: float = 1.0, seed: Seed = None) -> Tensor:
        """Map latents alone to uint8 images, see `DenseFlow.decode_latent`."""
        return self.flow.decode_latent(z, temperature=temperature, seed=seed)

    # ---- densities of one draw of the noise -----------------------------------------------

    def prototype_log_likelihood(
        self, enc: Encoding, dropout: MixtureDropout | None = None
    ) -> Tensor:
        """log N(z; c, k), (N, C, K); −inf where a class has no such prototype."""
        return self.mixtures.log_prob(enc.latent, dropout)

    def class_log_likelihood(self, enc: Encoding, dropout: MixtureDropout | None = None) -> Tensor:
        """log p(z|c), (N, C)."""
        return self.mixtures.class_log_prob(enc.latent, dropout)

    def class_log_prob(self, enc: Encoding, dropout: MixtureDropout | None = None) -> Tensor:
        """log p(x|c) = log_det + log p(z|c), (N, C), in nats: a one-sample bound."""
        return enc.log_det[:, None] + self.class_log_likelihood(enc, dropout)

    def log_posterior(self, enc: Encoding, dropout: MixtureDropout | None = None) -> Tensor:
        """log p(y|x) for this draw of the noise, (N, C), with priors and temperatures."""
        table = self.prototype_log_likelihood(enc, dropout)
        return self.classify(self.tempered_log_likelihood(table, dropout))

    def tempered_log_likelihood(
        self, prototype_log_likelihood: Tensor, dropout: MixtureDropout | None = None
    ) -> Tensor:
        """log p(z|c) with all variances times `config.variance_temperature` T, (N, C, K) → (N, C).

        What classes are compared by once the model is calibrated; `class_log_likelihood` at T = 1.
        """
        temperature = self.config.variance_temperature
        if temperature != 1:
            dims = None if dropout is None else dropout.dims
            prototype_log_likelihood = temper(
                prototype_log_likelihood, self.mixtures.std, temperature, dims
            )
        return self.mixtures.mix(prototype_log_likelihood, dropout)

    def classify(self, class_log_prob: Tensor) -> Tensor:
        """Bayes' rule on log p(x|c) or log p(z|c), (…, C), at the logits' temperature τ.

        log p(y|x) = log softmax((log p(x|c) + log p(c)) / τ) (`eq:gmmTotal`).
        """
        logits = class_log_prob + self.mixtures.log_prior
        return (logits / self.config.logit_temperature).log_softmax(dim=-1)

    @torch.no_grad()
    def score(self, x: Tensor, *, seeds: Seed = None) -> Scores:
        """Everything that one pass over x says, in eval mode and without gradients.

        Densities are the trained ones. What the posterior compares is
        `log_det + tempered_log_likelihood(prototype_log_likelihood)`, the same unless calibrated.

        Args:
            x: Images (N, C, H, W).
            seeds: One seed per image (see `image_seeds`), or anything that `encode` takes.
        """
        with evaluating(self):
            enc = self.encode(x, seed=seeds)
            table = self.prototype_log_likelihood(enc)
            log_prob = enc.log_det[:, None] + self.mixtures.mix(table)
        return Scores(log_prob, table, enc.log_det, enc.latent)

    # ---- averages over draws --------------------------------------------------------------

    def log_prob(
        self,
        x: Tensor,
        y: int | Tensor | None = None,
        *,
        samples: int = 1,
        seed: int | Tensor = 0,
        rule: Literal["importance", "mean"] = "importance",
        batch_size: int = 256,
    ) -> Tensor:
        """log p(x) = log Σ_c p(c) p(x|c), or log p(x|y) where y is given; (N,) in nats.

        A lower bound. More samples make it tighter with the rule "importance", log-mean-exp over
        the draws; "mean" averages one-sample bounds, which only makes the figure steadier.

        Args:
            x: Images (N, C, H, W).
            y: A class for all images, or one for each (N,).
            samples: Draws of the noise per image.
            seed: From which all draws follow, or one seed per image.
            rule: How draws are averaged.
            batch_size: Images per pass.
        """
        mean = check_rule(rule, "mean")
        prior = self.mixtures.log_prior

        def evaluate(enc: Encoding) -> Tensor:
            table = self.class_log_prob(enc)
            return table if y is not None else (table + prior).logsumexp(1)

        labels = None if y is None else check_labels(y, len(x), self.config.num_classes)
        with evaluating(self):
            log_prob = average_draws(
                self._encode,
                evaluate,
                x,
                samples=samples,
                mean=mean,
                seed=seed,
                batch_size=batch_size,
            )
        return (
            log_prob
            if labels is None
            else log_prob.gather(1, labels.to(log_prob.device)[:, None])[:, 0]
        )

    def predict_proba(
        self,
        x: Tensor,
        *,
        samples: int = 8,
        rule: Literal["mean-logit", "importance"] = "mean-logit",
        seed: int | Tensor = 0,
        batch_size: int = 256,
    ) -> Tensor:
        """p(y|x), (N, C), from an average over draws of the noise.

        Args:
            x: Images (N, C, H, W).
            samples: Draws of the noise per image.
            rule: "mean-logit" averages log p(x|c) over the draws, "importance" takes their
                log-mean-exp, the better estimate of log p(x|c) itself.
            seed: From which all draws follow. An image's draws depend on its place in x, or, with
                one seed per image (N,), on its own seed alone.
            batch_size: Images per pass; memory is bounded by it, and results do not depend on it.
        """
        mean = check_rule(rule, "mean-logit")

        def evaluate(enc: Encoding) -> Tensor:
            table = self.prototype_log_likelihood(enc)
            return enc.log_det[:, None] + self.tempered_log_likelihood(table)

        with evaluating(self):
            log_prob = average_draws(
                self._encode,
                evaluate,
                x,
                samples=samples,
                mean=mean,
                seed=seed,
                batch_size=batch_size,
            )
            return self.classify(log_prob).exp().detach()

    def predict(
        self,
        x: Tensor,
        *,
        samples: int = 8,
        rule: Literal["mean-logit", "importance"] = "mean-logit",
        seed: int | Tensor = 0,
        batch_size: int = 256,
    ) -> Tensor:
        """The most probable class, int64 (N,); arguments as in `predict_proba`."""
        proba = self.predict_proba(x, samples=samples, rule=rule, seed=seed, batch_size=batch_size)
        return proba.argmax(1)

    # ---- samples --------------------------------------------------------------------------

    def sample(
        self,
        num: int,
        *,
        label: int | None = None,
        prototype: int | None = None,
        truncation: float | None = None,
        temperature: float = 1.0,
        seed: int | torch.Generator | None = None,
    ) -> Tensor:
        """Draw uint8 images (num, C, H, W) from a class, a prototype, or p(x).

        Args:
            num: How many.
            label: Class; None draws classes from the prior.
            prototype: Prototype of that class; None draws prototypes by their weights.
            truncation: Radius, in units of each distribution's standard deviations, inside which
                every latent coordinate is drawn; None for no limit, 0 for the mean.
            temperature: Shrinks what transitions put out towards its mean.
            seed: Source of randomness; torch's global state when None.
        """
        generator = as_generator(seed)
        drawn = self.draw_latents(
            num, label=label, prototype=prototype, truncation=truncation, seed=generator
        )
        if num == 0:
            return torch.zeros(0, *self.config.flow.image_shape, dtype=torch.uint8)
        with evaluating(self):
            parts = [
                self.decode_latent(z, temperature=temperature, seed=generator)
                for z in drawn.latent.split(_DECODE_BATCH)
            ]
        return torch.cat(parts)

    def draw_latents(
        self,
        num: int,
        *,
        label: int | None = None,
        prototype: int | None = None,
        truncation: float | None = None,
        seed: int | torch.Generator | None = None,
    ) -> DrawnLatents:
        """Draw latents (num, D) with the prototypes they come from; arguments as in `sample`."""
        generator = as_generator(seed)
        return draw_latents(self.mixtures, num, label, prototype, truncation, generator)

    def prototype_mean_image(self, label: int, prototype: int) -> Tensor:
        """The image of a prototype's mean, uint8 (C, H, W); what transitions put out is 0."""
        prototype = check_prototype(self.mixtures, label, prototype)
        with evaluating(self):
            return self.decode_latent(self.mixtures.mean[label, prototype][None], temperature=0)[0]

    # ---- a person in the loop -------------------------------------------------------------

    def with_prototypes(
        self,
        disable: Collection[tuple[int, int]] = (),
        merge: Collection[tuple[tuple[int, int], tuple[int, int]]] = (),
        names: Mapping[tuple[int, int], str] | None = None,
    ) -> ProtoFlow:
        """A new model with prototypes switched off, merged and named; indices stay what they were.

        Args:
            disable: Prototypes (class, prototype) to switch off.
            merge: Pairs of prototypes of one class; the first takes the second in, by matching the
                moments of both, and the second is switched off.
            names: Names by (class, prototype); an empty string takes a name away.
        """
        return edit_prototypes(self, disable, merge, names or {})

    def keep_prototypes(self, mask: Tensor) -> ProtoFlow:
        """A new model with only the prototypes that mask (C, K) marks; weights renormalised."""
        return keep_prototypes(self, mask)

    # ---- helpers --------------------------------------------------------------------------

    def _encode(self, x: Tensor, seeds: Tensor) -> Encoding:
        if len(x):
            return self.encode(x, seed=seeds)
        like = self.mixtures.mean  # no images: nothing to compute, but shapes to keep
        empty = like.new_zeros(0, *self.config.flow.latent_shape)
        return Encoding(empty, like.new_zeros(0), (), like.new_zeros(0))
