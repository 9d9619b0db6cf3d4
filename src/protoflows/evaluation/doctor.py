"""A model's health: invertible, exactly scored, finite, and with prototypes that are of use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from protoflows.evaluation.doctor_flow import check_log_det, check_units
from protoflows.flows import ActNorm, Encoding, InvertibleConv
from protoflows.model import ProtoFlow, evaluating, image_seeds
from protoflows.prototypes import ClassMixtures
from protoflows.prototypes.hellinger import pairwise_modified_hellinger

Status = Literal["OK", "WARN", "FAIL"]

DUPLICATE = 1e-3
"""Prototypes of a class that are nearer than this (`eq:hell`, from 0 to 1) are copies."""
_EXPLODED_LOG_SCALE = 10.0  # a factor of 22,000
_EXPLODED_STD = 1e3
_FLOOR = 1.001
_ILL_CONDITIONED, _SINGULAR = 1e4, 1e7  # in float32, 3 digits left, and none
_MARGINS = (0.25, 0.1, 1e-2, 1e-3)
_LATENT_TOLERANCE = 1e-3
_UNIT_WARN, _UNIT_FAIL = 1e-3, 1e-1
_LOG_DET_TOLERANCE = 1e-6
_LISTED = 5


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        check: What was looked at.
        status: OK; WARN for what works but is worth knowing; FAIL for what makes results wrong.
        detail: What was found, with its figures.
    """

    check: str
    status: Status
    detail: str


class Diagnosis(NamedTuple):
    """All findings, in the order in which they were made."""

    findings: list[Finding]

    @property
    def status(self) -> Status:
        """The worst of them."""
        found = {finding.status for finding in self.findings}
        return "FAIL" if "FAIL" in found else "WARN" if "WARN" in found else "OK"

    def table(self) -> str:
        """A line for each."""
        width = max(len(finding.check) for finding in self.findings)
        lines = [f"{status:<4}  {check:<{width}}  {text}" for check, status, text in self.findings]
        return "\n".join(lines)


def diagnose(model: ProtoFlow, images: Tensor | None = None, *, seed: int = 0) -> Diagnosis:
    """Look a model over; nothing of it is changed.

    Args:
        model: The model, on any device.
        images: uint8 images (N, C, H, W) like those it was trained on; a dozen are enough. Where
            there are none, the examples that were saved with it; random ones, if there are none
            either, which say less.
        seed: Of the noise, of random images, and of which layers are differentiated.
    """
    images, source = _images(model, images, seed)
    seeds = image_seeds(0, len(images), 0, seed)
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("numbers", lambda: check_numbers(model)),
        ("scales", lambda: check_scales(model)),
        ("prototypes", lambda: check_prototypes(model.mixtures)),
        ("densities", lambda: check_densities(model, images, seeds, source)),
        ("round trip", lambda: check_round_trip(model, images, seeds, source)),
        ("units", lambda: _of_units(model, images, seeds)),
        ("log-determinant", lambda: _of_log_det(model, images, seeds, seed)),
    ]
    findings: list[Finding] = []
    with evaluating(model):
        for name, check in checks:
            try:
                findings.extend(check())
            except Exception as error:  # a broken model breaks wherever it likes: that is a finding
                findings.append(Finding(name, "FAIL", f"{type(error).__name__}: {error}"))
    return Diagnosis(findings)


def check_numbers(model: ProtoFlow) -> Iterator[Finding]:
    """No parameter or buffer holds NaN or infinity."""
    tensors = model.state_dict()
    bad = {
        name: int((~value.isfinite()).sum())
        for name, value in tensors.items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    }
    total = sum(value.numel() for value in tensors.values())
    if bad:
        worst = _some([f"{name} ({count})" for name, count in bad.items()])
        yield Finding("finite numbers", "FAIL", f"NaN or infinite in {len(bad)} tensors: {worst}")
    else:
        yield Finding("finite numbers", "OK", f"{total:,} numbers in {len(tensors)} tensors")


@torch.no_grad()
def check_scales(model: ProtoFlow) -> Iterator[Finding]:
    """Actnorm scales and standard deviations in bounds, 1x1 convolutions well conditioned."""
    norms = {n: m for n, m in model.flow.named_modules() if isinstance(m, ActNorm)}
    largest = {n: float(m.log_scale.abs().max()) for n, m in norms.items()}
    exploded = [f"{n} ({v:.1f})" for n, v in largest.items() if not v <= _EXPLODED_LOG_SCALE]
    idle = [n for n, m in norms.items() if not bool(m.initialized)]
    if exploded:
        text = f"|log scale| above {_EXPLODED_LOG_SCALE:g} in {_some(exploded)}"
        yield Finding("actnorm scales", "WARN", text)
    elif idle:
        text = f"never set from data in {len(idle)} of {len(norms)} layers: {_some(idle)}"
        yield Finding("actnorm scales", "WARN", text)
    elif norms:
        text = f"{len(norms)} layers, |log scale| up to {max(largest.values()):.2f}"
        yield Finding("actnorm scales", "OK", text)

    convs = {n: m for n, m in model.flow.named_modules() if isinstance(m, InvertibleConv)}
    if convs:
        condition = {n: _condition(m.weight) for n, m in convs.items()}
        name, worst = max(condition.items(), key=lambda item: item[1])
        status: Status = (
            "OK" if worst <= _ILL_CONDITIONED else "WARN" if worst <= _SINGULAR else "FAIL"
        )
        text = f"condition number up to {worst:.3g} ({name}) in {len(convs)} layers"
        yield Finding("1x1 convolutions", status, text)

    mixtures = model.mixtures
    std = mixtures.std[mixtures.mask]
    low, high, floor = float(std.min()), float(std.max()), mixtures.config.min_std
    at_floor = float((std <= floor * _FLOOR).double().mean())
    text = f"from {low:.3g} to {high:.3g}, {100 * at_floor:.1f} % at the floor {floor:g}"
    fine = high <= _EXPLODED_STD and at_floor == 0
    yield Finding("prototype scales", "OK" if fine else "WARN", text)


@torch.no_grad()
def check_prototypes(mixtures: ClassMixtures) -> Iterator[Finding]:
    """No living prototype without weight, and no two alike in a class."""
    num_classes, num_prototypes = mixtures.mask.shape
    least = 1 / (100 * num_prototypes)
    alive = int(mixtures.mask.sum())
    dead = (mixtures.mask & ~(mixtures.weights >= least)).nonzero().tolist()
    absent = mixtures.mask.numel() - alive
    gone = f" ({absent} more are switched off)" if absent else ""
    if dead:
        text = f"{len(dead)} of {alive} weigh less than {least:.2g}: {_some(_pairs(dead))}{gone}"
        yield Finding("dead prototypes", "WARN", text)
    else:
        yield Finding("dead prototypes", "OK", f"none of {alive}{gone}")

    copies, nearest = [], float("inf")
    for c in range(num_classes):
        living = mixtures.mask[c].nonzero().flatten()
        table = pairwise_modified_hellinger(
            mixtures.mean[c, living].double(), mixtures.std[c, living].double()
        )
        i, j = torch.triu_indices(len(living), len(living), 1, device=table.device)
        divergence = table[i, j]
        if len(divergence):
            nearest = min(nearest, float(divergence.min()))
        close = (divergence < DUPLICATE).nonzero().flatten()
        first, second = living[i[close]].tolist(), living[j[close]].tolist()
        copies += [f"{c}: {a} and {b}" for a, b in zip(first, second, strict=True)]
    if copies:
        text = f"{len(copies)} pairs nearer than {DUPLICATE:g} (class: prototypes) {_some(copies)}"
        yield Finding("duplicate prototypes", "WARN", text)
    elif nearest == float("inf"):
        yield Finding("duplicate prototypes", "OK", "no class has two prototypes")
    else:
        text = f"none; the nearest two of a class are {nearest:.3g} apart (0 to 1)"
        yield Finding("duplicate prototypes", "OK", text)


def check_densities(
    model: ProtoFlow, images: Tensor, seeds: Tensor, source: str
) -> Iterator[Finding]:
    """Every class gives a finite log p(x|c)."""
    log_prob = model.score(images, seeds=seeds).log_prob_classes
    bad = int((~log_prob.isfinite()).any(1).sum())
    if bad:
        text = f"NaN or infinite log p(x|c) for {bad} of {len(images)} {source}"
        yield Finding("densities", "FAIL", text)
    else:
        best = log_prob.amax(1).mean()
        text = f"log p(x|c) is finite for {len(images)} {source}; of the best class {best:.1f} nats"
        yield Finding("densities", "OK", text)


@torch.no_grad()
def check_round_trip(
    model: ProtoFlow, images: Tensor, seeds: Tensor, source: str
) -> Iterator[Finding]:
    """Images come back pixel for pixel, with what margin, and decoded ones meet their latent again.

    Decoding rounds, and is right while the inverse is off by less than half a level. With the noise
    that it subtracts moved by ±(½ − m), it is still right only where the inverse is off by less
    than m: that gives the error's size without looking inside.
    """
    enc = model.encode(images, seed=seeds)
    decoded = model.decode(enc)
    wrong = int((decoded.cpu() != images.cpu()).sum())
    if wrong:
        text = f"{wrong} of {images.numel()} values of {len(images)} {source} come back wrong"
        yield Finding("round trip", "FAIL", text)
        return
    margin = 0.5
    for smaller in _MARGINS:
        shifted = (_shift(enc, 0.5 - smaller), _shift(enc, smaller - 0.5))
        if not all(torch.equal(model.decode(moved).cpu(), images.cpu()) for moved in shifted):
            break
        margin = smaller
    text = f"{len(images)} {source} come back exactly; inverse off by less than {margin:g} levels"
    yield Finding("round trip", "OK" if margin <= _MARGINS[1] else "WARN", text)
    again = model.encode(decoded, seed=seeds)
    error = float((again.latent - enc.latent).abs().max() / enc.latent.std().clamp_min(1e-12))
    status: Status = "OK" if error <= _LATENT_TOLERANCE else "FAIL"
    text = f"decoded images meet their latents to {error:.2g} standard deviations"
    yield Finding("latent round trip", status, text)


def _of_units(model: ProtoFlow, images: Tensor, seeds: Tensor) -> Iterator[Finding]:
    found = check_units(model.flow, images, seeds)
    name, worst = max(found.items(), key=lambda item: item[1])
    status: Status = "OK" if worst <= _UNIT_WARN else "WARN" if worst <= _UNIT_FAIL else "FAIL"
    text = f"{len(found)} units undo themselves to {worst:.2g} of their input's size ({name})"
    yield Finding("unit inverses", status, text)


def _of_log_det(model: ProtoFlow, images: Tensor, seeds: Tensor, seed: int) -> Iterator[Finding]:
    found = check_log_det(model.flow, images, seeds, seed=seed)
    error = abs(found.reported - found.exact)
    fine = error <= _LOG_DET_TOLERANCE * max(1.0, abs(found.exact))
    text = (
        f"{found.where} on {found.values} values in float64: reported {found.reported:.6f}, by "
        f"autograd {found.exact:.6f}"
    )
    yield Finding("log-determinant", "OK" if fine else "FAIL", text)


def _images(model: ProtoFlow, images: Tensor | None, seed: int) -> tuple[Tensor, str]:
    if images is not None and len(images):
        return images, "images"
    extras = model.extras
    if extras is not None and extras.images is not None and len(extras.images):
        return extras.images[:12], "saved examples"
    config = model.config.flow
    generator = torch.Generator().manual_seed(seed)
    shape = (4, *config.image_shape)
    x = torch.randint(0, config.levels, shape, generator=generator, dtype=torch.uint8)
    return x, "random images"


def _shift(enc: Encoding, by: float) -> Encoding:
    return Encoding(enc.latent, enc.log_det, enc.factored, enc.dequantization + by)


def _condition(weight: Tensor) -> float:
    if not bool(weight.isfinite().all()):
        return float("inf")
    values = torch.linalg.svdvals(weight.detach().to("cpu", torch.float64))
    return float(values[0] / values[-1]) if float(values[-1]) > 0 else float("inf")


def _pairs(pairs: list[list[int]]) -> list[str]:
    return [f"({c}, {k})" for c, k in pairs]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
