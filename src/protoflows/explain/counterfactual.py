"""The least change in latent space that makes an image another class, as an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.explain.readout import Readout, read_out
from protoflows.flows import Encoding
from protoflows.model import ProtoFlow, evaluating, image_seeds
from protoflows.model.montecarlo import check_labels

# Steps of the coarse search; beyond 1 the path goes past the prototype's own centre.
_COARSE = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.25, 1.5, 1.75)
_BISECTIONS = 4
_SEARCH, _VERIFY = 1, 2  # different noise for search and for the verdict


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """What N images end in.

    Attributes:
        original: The images, uint8 (N, C, H, W).
        images: What became of them, uint8 (N, C, H, W).
        source: Their classes before, (N,).
        target: The classes that were asked for, (N,).
        success: Whether the uint8 image, encoded again with fresh noise, is of the target's class.
        prototype: Prototype of the target's class that the path leads to, (N,).
        step: How far along the path, (N,); 0 where an image was of the class already.
        distance: Length of the change in z in units of the target prototype's standard deviations
            (Mahalanobis), divided by √D, (N,).
        pixel_change: Mean absolute change of a pixel as a share of its range, (N,).
        posterior: p(c|x) of the result under that fresh noise, (N, num_classes).
        log_prob: log p(x) of the result, nats (N,).
        percentile: Per cent of the training images less likely than the result; None if unknown.
        encoding: What the paths started from.
        change: What was added to z, (N, D).
    """

    original: Tensor
    images: Tensor
    source: Tensor
    target: Tensor
    success: Tensor
    prototype: Tensor
    step: Tensor
    distance: Tensor
    pixel_change: Tensor
    posterior: Tensor
    log_prob: Tensor
    percentile: Tensor | None
    encoding: Encoding
    change: Tensor

    @torch.no_grad()
    def way(self, model: ProtoFlow, index: int, steps: int = 7) -> tuple[Tensor, Tensor]:
        """The images on the way to one counterfactual, and how far along they are, from 0 to 1.

        Args:
            model: The model that it was found with.
            index: Which image.
            steps: Images, both ends included.
        """
        weights = torch.linspace(0, 1, steps, dtype=torch.float64)
        enc = self.encoding[torch.full((steps,), index)]
        change = self.change[index] * weights.to(self.change)[:, None]
        with evaluating(model):
            moved = enc.replace_latent(enc.latent + change.view(enc.latent.shape))
            return model.decode(moved).cpu(), weights


class _Paths(NamedTuple):
    """Candidate directions in z for each image, (N, D), and the prototypes they lead to, (N,)."""

    direction: Tensor
    prototype: Tensor
    std: Tensor

    def length(self) -> Tensor:
        scaled = self.direction / self.std
        return scaled.square().mean(1).sqrt()


class _Search:
    """Decodes points of paths and asks the model what they are."""

    def __init__(
        self,
        model: ProtoFlow,
        enc: Encoding,
        target: Tensor,
        confidence: float,
        samples: int,
        seed: int,
        batch: int,
    ) -> None:
        self.confidence = confidence
        self.model, self.enc, self.target = model, enc, target
        self.samples, self.seed, self.batch = samples, seed, batch

    def images(self, index: Tensor, direction: Tensor, step: Tensor) -> Tensor:
        """Images at `step` along `direction` from the images `index`."""
        if not len(index):
            return torch.zeros(0, *self.model.config.flow.image_shape, dtype=torch.uint8)
        part = self.enc[index.to(self.enc.latent.device)]
        change = direction * step.to(direction)[:, None]
        moved = part.replace_latent(part.latent + change.view(part.latent.shape))
        pieces = [
            self.model.decode(moved[slice(i, i + self.batch)]).cpu()
            for i in range(0, len(index), self.batch)
        ]
        return torch.cat(pieces)

    def ask(self, images: Tensor, noise: int) -> Readout:
        """What the model makes of uint8 images, with noise of its own."""
        return read_out(
            self.model, images, samples=self.samples, seed=self.seed * 7 + noise,
            batch_size=self.batch,
        )  # fmt: skip

    def reaches(self, index: Tensor, direction: Tensor, step: Tensor) -> Tensor:
        """Whether images at `step` are of the target's class, by the confidence asked for."""
        return self.accepts(self.ask(self.images(index, direction, step), _SEARCH), index)

    def accepts(self, found: Readout, index: Tensor) -> Tensor:
        """Whether the target of each image has won with the confidence asked for."""
        wanted = self.target[index]
        proba = found.posterior.gather(1, wanted[:, None])[:, 0]
        return (found.labels == wanted) & (proba >= self.confidence)


@torch.no_grad()
def find_counterfactuals(
    model: ProtoFlow,
    x: Tensor,
    target: int | Tensor,
    *,
    confidence: float = 0.8,
    samples: int = 4,
    seed: int = 0,
    batch_size: int = 256,
) -> Counterfactuals:
    """Move z, and only z, towards the target's class until the image itself is of that class.

    Two paths are tried from every image: z(t) = z + t (μ_target − z), which ends at the mean of the
    target's likeliest prototype, and z(t) = z + t (μ_target − μ_source), which carries over how the
    image deviates from its own prototype. Steps are scanned outwards and the first that succeeds is
    refined by bisection; the shorter of both changes wins. Images that neither is a way for are
    sent straight to the target's other prototypes, one after the other. Only uint8 images encoded
    again with fresh noise are asked, and noise that the search has not seen gives the verdict;
    where other noise differs before that, the search goes on outwards.

    Args:
        model: The model.
        x: Images, uint8 (N, C, H, W).
        target: Class to reach, or one for each image.
        confidence: p(target|x) that the search asks for; right on the border between classes,
            other noise gives other answers. 0 for the border itself.
        samples: Draws of the noise whenever the model is asked.
        seed: Of all noise.
        batch_size: Images per pass.
    """
    if not 0 <= confidence < 1:
        raise ValueError(f"confidence must be at least 0 and below 1, got {confidence}")
    labels = check_labels(target, len(x), model.config.num_classes)
    x = x.cpu()
    with evaluating(model):
        enc = model.encode(x, seed=image_seeds(0, len(x), 0, seed))
        search = _Search(model, enc, labels, confidence, samples, seed, batch_size)
        before = read_out(model, x, samples=samples, seed=seed, batch_size=batch_size)
        paths = _paths(model, enc, before, labels)
        best_step = torch.zeros(len(x), dtype=torch.float64)
        best_path = torch.zeros(len(x), dtype=torch.int64)
        best = torch.full((len(x),), torch.inf, dtype=torch.float64)
        todo = (before.labels != labels).nonzero().flatten()
        for number, path in enumerate(paths[:2]):
            step = _first_success(search, path, todo)
            length = step * path.length().cpu().double()[todo]
            better = length < best[todo]
            chosen = todo[better]
            best[chosen], best_step[chosen] = length[better], step[better]
            best_path[chosen] = number
        # What no path reached is shown at the prototype's mean, and counts as a failure.
        best_step[todo[best[todo].isinf()]] = 1.0
        images, best_step, left = _verify(search, x, paths, best_path, best_step, todo)
        for number in range(2, len(paths)):
            if not len(left):
                break
            step = _first_success(search, paths[number], left)
            chosen = left[step.isfinite()]
            best_step[chosen], best_path[chosen] = step[step.isfinite()], number
            moved, best_step, lost = _verify(search, x, paths, best_path, best_step, chosen)
            images[chosen] = moved[chosen]
            left = torch.cat([left[step.isinf()], lost])
        final = search.ask(images, _VERIFY)  # noise that had no part in any choice
    lengths = torch.stack([path.length().cpu().double() for path in paths])
    change = (images.int() - x.int()).abs().double().flatten(1).mean(1)
    extras = model.extras
    known = extras is not None and extras.log_prob_quantiles is not None
    return Counterfactuals(
        x, images, before.labels, labels, final.labels == labels,
        torch.stack([path.prototype.cpu() for path in paths]).gather(0, best_path[None])[0],
        best_step, best_step * lengths.gather(0, best_path[None])[0],
        change / (model.config.flow.levels - 1), final.posterior, final.log_prob,
        extras.percentile(final.log_prob_mean) if known and extras is not None else None,
        enc, _chosen(paths, best_path) * best_step.to(enc.latent)[:, None],
    )  # fmt: skip


def _paths(model: ProtoFlow, enc: Encoding, before: Readout, labels: Tensor) -> tuple[_Paths, ...]:
    """To the target's likeliest prototype in two ways, then straight to each of its others."""
    mixtures = model.mixtures
    z = mixtures.flatten(enc.latent)
    rows = torch.arange(len(z))
    joint = mixtures.log_weights.cpu().double() + before.prototype_log_likelihood
    ranked = joint[rows, labels].argsort(1, descending=True)
    living = mixtures.mask.sum(1).cpu()[labels]
    to, fro = ranked[:, 0], joint[rows, before.labels].argmax(1)
    mean, std = mixtures.mean[labels, to], mixtures.std[labels, to]
    own = mixtures.mean[before.labels, fro]
    paths = [_Paths(mean - z, to, std), _Paths(mean - own, to, std)]
    for k in range(1, int(living.max()) if len(living) else 0):
        to = torch.where(k < living, ranked[:, k], ranked[:, 0])
        paths.append(_Paths(mixtures.mean[labels, to] - z, to, mixtures.std[labels, to]))
    return tuple(paths)


def _first_success(search: _Search, path: _Paths, todo: Tensor) -> Tensor:
    """The smallest step found for each of the images `todo`; inf where none is."""
    lower = torch.zeros(len(todo), dtype=torch.float64)
    upper = torch.full((len(todo),), torch.inf, dtype=torch.float64)
    for step in _COARSE:
        open_ = upper.isinf().nonzero().flatten()
        if not len(open_):
            break
        at = torch.full((len(open_),), step, dtype=torch.float64)
        reached = search.reaches(todo[open_], path.direction[todo[open_]], at)
        upper[open_[reached]] = step
        lower[open_[~reached]] = step
    done = upper.isfinite().nonzero().flatten()
    for _ in range(_BISECTIONS):
        if not len(done):
            break
        middle = (lower[done] + upper[done]) / 2
        reached = search.reaches(todo[done], path.direction[todo[done]], middle)
        upper[done[reached]] = middle[reached]
        lower[done[~reached]] = middle[~reached]
    return upper


def _verify(
    search: _Search,
    x: Tensor,
    paths: tuple[_Paths, ...],
    chosen: Tensor,
    step: Tensor,
    todo: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Judge with new noise and move on who fails, seven times at most.

    Returns images, steps, and the places of those that still fail.
    """
    images, step = x.clone(), step.clone()
    direction = _chosen(paths, chosen)
    images[todo] = search.images(todo, direction[todo], step[todo])
    wrong = todo
    for attempt in range(8):
        # Every attempt has noise of its own, or the last would be fitted to the verdict's.
        found = search.ask(images[todo], _VERIFY + 1 + attempt)
        wrong = todo[~search.accepts(found, todo)]
        if not len(wrong) or attempt == 7:  # noqa: PLR2004
            break
        step[wrong] = (step[wrong] * 1.1 + 0.01).clamp_max(2.0)
        images[wrong] = search.images(wrong, direction[wrong], step[wrong])
    return images, step, wrong


def _chosen(paths: tuple[_Paths, ...], chosen: Tensor) -> Tensor:
    """Directions (N, D) of the path chosen for each image."""
    directions = torch.stack([path.direction for path in paths], 1)
    rows = torch.arange(len(chosen), device=directions.device)
    return directions[rows, chosen.to(directions.device)]
