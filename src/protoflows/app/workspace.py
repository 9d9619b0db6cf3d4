"""What all visitors share and none of them can change: the model, its data, what was computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from protoflows.app.cache import Cache
from protoflows.app.edits import Edits, apply_edit, merges_of
from protoflows.app.encoded import Answers, Encoded, Progress, answer, encode_split
from protoflows.app.others import OTHERS, load_others, made_images, made_kinds
from protoflows.app.score import Score, score
from protoflows.data import DATASETS, DataConfig, Split, load_data, training_splits
from protoflows.data.splits import TrainingSplits, stratified_choice
from protoflows.explain.retrieved import RetrievedParts, load_parts
from protoflows.model import ProtoFlow, evaluating, find_model_folder, load
from protoflows.training.runfolder import CONFIG

_T = TypeVar("_T")
_ENOUGH = 200  # validation images below which the test images are the better measure of an edit
MEASURING_DRAWS = 4


@dataclass(frozen=True, eq=False)
class Workspace:
    """A model with whatever data of it is within reach.

    Attributes:
        name: What it is called.
        model: The model as it was loaded; never changed.
        home: The folder that holds it; None for one that ships with the package.
        train: Training images to look for neighbours in; None where out of reach.
        validation: Images that training has not seen and choices may be made by.
        test: Test images.
        notes: What is missing, and why.
        others: Images of other data sets, as the model takes them, by name.
        limit: At most so many images are measured or searched.
    """

    name: str
    model: ProtoFlow
    home: Path | None = None
    train: Split | None = None
    validation: Split | None = None
    test: Split | None = None
    notes: tuple[str, ...] = ()
    others: Mapping[str, Split] = field(default_factory=dict)
    limit: int = 1000
    _cache: Cache = field(default_factory=Cache)
    _sets: Cache = field(default_factory=lambda: Cache(1000))  # few: never forgotten
    _models: Cache = field(default_factory=lambda: Cache(16))
    _means: Cache = field(default_factory=lambda: Cache(512))

    # ---- models ---------------------------------------------------------------------------

    def edited(self, edits: Edits) -> ProtoFlow:
        """The model with edits made; two visitors with the same edits share it."""
        if not edits:
            return self.model
        return self._models.get(edits, lambda: apply_edit(self.edited(edits[:-1]), edits[-1]))

    def parts(self, edits: Edits) -> RetrievedParts | None:
        """Parts of the training set stored with the run, where they still fit the prototypes."""
        home = self.home
        if home is None:
            return None
        return self._cache.get(("parts", edits), lambda: load_parts(home, self.edited(edits)))

    # ---- images ---------------------------------------------------------------------------

    def examples(self) -> tuple[Split, str] | None:
        """Images to choose from, and what they are; None where there are none at all."""
        if self.test is not None:
            return self.test, "test images"
        extras = self.model.extras
        if extras is None or extras.images is None or extras.labels is None:
            return None
        if not len(extras.images):
            return None
        return Split(extras.images, extras.labels), "training images saved with the model"

    def neighbourhood(self) -> tuple[Split, str] | None:
        """Training images to show beside prototypes, and what they are."""
        if self.train is not None:
            split = self._sets.get("train subset", lambda: self._limited(self.train))
            whole = len(split) == len(self.train)
            return split, f"{'all' if whole else 'a sample of'} {len(split):,} training images"
        extras = self.model.extras
        if extras is None or extras.images is None or extras.labels is None:
            return None
        if not len(extras.images):
            return None
        return Split(extras.images, extras.labels), "the few training images saved with the model"

    def held_out(self) -> tuple[Split, str] | None:
        """Labelled images to measure edits on, and what they are."""
        if self.validation is not None and len(self.validation) >= _ENOUGH:
            split = self._sets.get("validation subset", lambda: self._labelled(self.validation))
            return (split, f"{len(split):,} validation images") if len(split) else None
        return self.measured()

    def measured(self) -> tuple[Split, str] | None:
        """Labelled test images to measure the model on, and what they are."""
        if self.test is None:
            return None
        split = self._sets.get("test subset", lambda: self._labelled(self.test))
        return (split, f"{len(split):,} test images") if len(split) else None

    def other_kinds(self) -> tuple[str, ...]:
        """Names of images to tell apart from the model's own."""
        return (*self.others, *made_kinds(self.model)) if self.measured() else ()

    def other(self, kind: str) -> Split:
        """Images that are not of the model's kind."""
        if kind in self.others:
            return self.others[kind]
        found = self.measured()
        if found is None or kind not in made_kinds(self.model):
            raise ValueError(f"There are no images {kind!r}.")
        few = min(self.limit, OTHERS)
        return self._sets.get(("other", kind), lambda: made_images(self.model, found[0], kind, few))

    # ---- encodings ------------------------------------------------------------------------

    def encode(self, split: Split, samples: int, progress: Progress | None = None) -> Encoded:
        """Encode one of the splits above, once for everybody."""
        key = ("encoded", split.images.data_ptr(), len(split), samples)
        return self._sets.get(
            key, lambda: encode_split(self.model, split, samples=samples, progress=progress)
        )

    def answers(self, edits: Edits, split: Split, progress: Progress | None = None) -> Answers:
        """What the edited model says about a split, once for everybody."""
        encoded = self.encode(split, MEASURING_DRAWS, progress)
        key = ("answers", edits, split.images.data_ptr(), len(split))
        return self._cache.get(key, lambda: answer(self.edited(edits), encoded))

    def score(self, edits: Edits, split: Split, progress: Progress | None = None) -> Score:
        """How good the edited model is on a split, once for everybody."""
        found = self.answers(edits, split, progress)
        key = ("score", edits, split.images.data_ptr(), len(split))
        return self._cache.get(key, lambda: score(self.edited(edits), found, split.labels))

    def cached(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Something else that is computed once for everybody."""
        return self._cache.get(key, make)

    def mean_images(self, edits: Edits, label: int) -> dict[tuple[int, int], Tensor]:
        """The image of every prototype's mean, uint8 (C, H, W), of one class.

        Prototypes that were switched off or merged into others are among them.
        """
        # Only merging moves means: without it, all edits share the images.
        moved = merges_of(edits, label)
        return self._means.get(
            (label, moved),
            lambda: decode_means(self.edited(moved), self.model.mixtures.mask, label),
        )

    # ---- helpers --------------------------------------------------------------------------

    def _limited(self, split: Split | None) -> Split:
        assert split is not None
        if len(split) <= self.limit:
            return split
        return split.select(stratified_choice(split.labels, self.limit, 0))

    def _labelled(self, split: Split | None) -> Split:
        assert split is not None
        known = (split.labels >= 0).nonzero().flatten()
        return self._limited(split if len(known) == len(split) else split.select(known))


@torch.no_grad()
def decode_means(model: ProtoFlow, shown: Tensor, label: int) -> dict[tuple[int, int], Tensor]:
    """Images of the means of one class, decoded in batches.

    Args:
        model: The model.
        shown: Which prototypes, bool (C, K).
        label: The class.
    """
    where = shown[label].nonzero().flatten()
    means = model.mixtures.mean[label, where]
    with evaluating(model):
        images = torch.cat([model.decode_latent(z, temperature=0).cpu() for z in means.split(256)])
    return {(label, int(k)): image for k, image in zip(where.tolist(), images, strict=True)}


def open_workspace(
    run: str, *, data_root: str | None = None, limit: int = 1000, ood: Sequence[str] = ()
) -> Workspace:
    """Load a run's folder, a saved model's folder or a shipped model, with data where it is found.

    Args:
        run: Which.
        data_root: Where the run's data set is now; None takes the place that training read.
        limit: At most so many images are measured or searched.
        ood: Other data sets to tell apart from its own, by name or as an image folder's path.
    """
    if limit < 1:
        raise ValueError(f"images must be at least 1, got {limit}")
    folder = Path(run).expanduser()
    home = find_model_folder(folder)
    name = folder.resolve().name if home is not None else run
    splits: TrainingSplits | None = None
    model, why = None, ""
    if home is not None and (folder / CONFIG).is_file():
        from protoflows.cli.run_data import open_run

        try:
            opened = open_run(folder, data_root=data_root)
            model, splits = opened.model, training_splits(opened.bundle, opened.config.data)
        except (ValueError, OSError) as error:
            why = f"The run's data is out of reach ({error})."
    if model is None:
        model = load(run)
    if splits is None and not why:
        splits = _by_name(model, data_root)
        why = "" if splits is not None else "The model came without its data."
    with evaluating(model), torch.no_grad():  # layers cache what they need, before threads do
        model.decode_latent(model.mixtures.mean[0, :1], temperature=0)
    others = load_others(model, ood, data_root)
    if splits is None:
        notes = (f"{why} {_saved(model)}",)
        return Workspace(name, model, home, notes=notes, limit=limit)
    train, validation, test = (part if len(part) else None for part in splits)
    missing = ["The data set has no test images: nothing is measured."] if test is None else []
    return Workspace(name, model, home, train, validation, test, tuple(missing), others, limit)


def _saved(model: ProtoFlow) -> str:
    images = model.extras.images if model.extras is not None else None
    if images is None or not len(images):
        return "No images are there to choose from: upload or draw one. Nothing can be measured."
    return (
        f"The {len(images)} training images that were saved with the model stand in for it; "
        "accuracy and calibration cannot be measured on those."
    )


def _by_name(model: ProtoFlow, data_root: str | None) -> TrainingSplits | None:
    """The data set that a model was trained on, if it is one of those known, byte for byte."""
    extras = model.extras
    if extras is None or extras.data_name not in DATASETS or not extras.data_fingerprint:
        return None
    channels, size, _ = model.config.flow.image_shape
    try:
        bundle = load_data(DataConfig(extras.data_name, data_root, size, channels))
    except (ValueError, OSError):
        return None
    if bundle.fingerprint != extras.data_fingerprint:
        return None
    # Which training images were held out for validation is not known: none are taken for that.
    none = Split(bundle.test.images[:0], bundle.test.labels[:0])
    return TrainingSplits(bundle.train, none, bundle.test)
