"""Steps, epochs, accumulation, skipping and going on, in one process."""

import csv
from dataclasses import replace

import pytest
import torch

from protoflows.data import Augment
from protoflows.training import MovingAverage
from protoflows.training.callbacks import Recorder
from protoflows.training.checkpoint import read_checkpoint
from protoflows.training.engine import fit, seeded
from protoflows.training.losses import Losses
from protoflows.training.module import TrainingDivergedError, TrainingModule
from protoflows.training.task import ClassifierTask, DensityTask
from tests.training.helpers import random_split, tiny_config, tiny_model


def train(config, folder=None, state=None, task=None, best=None, split=None, validation=None):
    if task is None:
        with seeded(config.seed):
            task = ClassifierTask(tiny_model(), config)
    split = random_split(30) if split is None else split
    augment = Augment(config.augment, 17) if config.augmented else None
    outcome = fit(
        task, config, split, validation, augment, folder=folder, state=state, best_average=best
    )
    return task.model, outcome


def small(**changes):
    settings = {"optim": {"epochs": 2, "batch_size": 10, "warmup_epochs": 0.0}}
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values}
    return tiny_config(**settings)


def equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_in_memory():
    model, outcome = train(small(), validation=random_split(12, seed=1))
    progress = outcome.progress
    assert (progress.epoch, progress.step, progress.skipped, outcome.signal) == (2, 6, 0, 0)
    assert not model.training
    assert [row["epoch"] for row in progress.rows] == [1, 2]
    for name in ("train_loss", "train_accuracy", "val_accuracy", "val_bits_per_dim"):
        assert name in progress.rows[0]


def test_same_seed_same_weights_other_seed_others():
    first, second = train(small())[0], train(small())[0]
    assert equal(first, second)
    config = tiny_config(seed=1, optim={"epochs": 2, "batch_size": 10, "warmup_epochs": 0.0})
    assert not equal(first, train(config)[0])


def test_global_random_state_is_neither_used_nor_changed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = train(small())[0]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert equal(first, train(small())[0])


def test_training_learns_to_tell_classes_apart():
    # Images of a class are bright in one third: easy, if losses and updates are right.
    split = random_split(90)
    for label in range(3):
        split.images[split.labels == label, :, 3 * label : 3 * label + 2] = 16
    config = small(optim={"epochs": 12, "lr": 5e-3}, prototypes={"num_prototypes": 2})
    _, outcome = train(config, split=split)
    rows = outcome.progress.rows
    assert rows[-1]["train_accuracy"] > 0.95
    assert rows[-1]["train_bits_per_dim"] < rows[0]["train_bits_per_dim"]


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": {"consistency": 1.0, "diversity": 1.0, "consistency_ramp_epochs": 1.0}},
        {"prototypes": {"update": "em"}},
        {"prototypes": {"prototype_dropout": 0.3, "latent_dropout": 0.2}},
        {"prototypes": {"init": "random"}, "loss": {"elbo": 0.0}},
        {"loss": {"cross_entropy": 0.0}},
        {"optim": {"accumulate": 2}},
    ],
    ids=lambda c: "-".join(c),
)
def test_options_train(changes):
    _, outcome = train(small(**changes))
    row = outcome.progress.rows[-1]
    assert outcome.progress.skipped == 0
    assert all(value == value for value in row.values())  # no NaN
    loss = {"elbo": 1.0, "cross_entropy": 1.0, "consistency": 0.0, "diversity": 0.0}
    for name, weight in (loss | changes.get("loss", {})).items():
        if name in loss:
            term = f"train_{name}"
            assert (term in row) == (weight > 0) or term == "train_cross_entropy"


def test_em_moves_the_mixtures_and_sgd_leaves_them_alone():
    config = small(prototypes={"update": "em"}, optim={"prototype_lr": 1.0})
    with seeded(0):
        task = ClassifierTask(tiny_model(), config)
    task.initialize(random_split(30))
    before = task.model.mixtures.mean.clone()
    assert len(task.parameter_groups()) == 2
    model, _ = train(config)
    assert not torch.equal(before, model.mixtures.mean)


def test_unlabelled_images_train():
    split = random_split(30)
    split.labels[5:25] = -1
    _, outcome = train(small(), split=split)
    assert outcome.progress.sums.images == 0  # reset at the epoch's end
    assert outcome.progress.skipped == 0


def test_accumulated_gradients_are_those_of_the_large_batch():
    """Without batch norm's and actnorm's looks at the batch, 2 x 15 images are 30."""

    def step(batch_size, accumulate):
        config = small(
            optim={"epochs": 1, "batch_size": batch_size, "accumulate": accumulate, "lr": 1e-3}
        )
        config = replace(config, augmented=False)  # augmentation is drawn batch by batch
        with seeded(0):
            task = ClassifierTask(tiny_model(), small(optim={"batch_size": 30}))
        task.initialize(random_split(30))
        recorded = []

        class Still(ClassifierTask):
            def initialize(self, split):
                self.model.mixtures.load_state_dict(task.model.mixtures.state_dict())

            def step(self, batch, where):
                self.model.eval()  # batch norm and actnorm as they are
                return super().step(batch, where)

        with seeded(0):
            still = Still(tiny_model(), config)
        for p, q in zip(still.model.parameters(), task.model.parameters(), strict=True):
            p.data.copy_(q.data)
        original = TrainingModule._step

        def note(self, optimizer):
            recorded.extend(p.grad.clone() for p in self.model.parameters() if p.grad is not None)
            original(self, optimizer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingModule, "_step", note)
            train(config, task=still)
        return recorded

    whole, parts = step(30, 1), step(15, 2)
    assert len(whole) == len(parts) > 10
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


class Fragile(ClassifierTask):
    """A task whose loss is not finite in chosen steps."""

    def __init__(self, model, config, bad):
        super().__init__(model, config)
        self.bad, self.calls = bad, 0

    def step(self, batch, where):
        found = super().step(batch, where)
        self.calls += 1
        if self.calls - 1 in self.bad:
            nan = found.losses.total * float("nan")
            found.losses = Losses(nan, found.losses.cross_entropy, found.losses.elbo * float("nan"))
        return found


def test_a_step_that_is_not_finite_is_skipped_and_counted():
    config = small()
    model, outcome = train(config, task=Fragile(tiny_model(), config, {1, 4}))
    assert (outcome.progress.skipped, outcome.progress.step) == (2, 4)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert outcome.progress.rows[-1]["skipped"] == 2


def test_too_many_in_a_row_stop_training_and_keep_the_last_checkpoint(tmp_path):
    config = small(optim={"epochs": 4, "max_skipped": 3})
    task = Fragile(tiny_model(), config, set(range(4, 100)))  # from the second epoch's second step
    with pytest.raises(TrainingDivergedError, match=r"loss term elbo .* 3 steps in a row.*epoch 3"):
        train(config, tmp_path, task=task)
    state = read_checkpoint(tmp_path / "checkpoints" / "last.ckpt", "classifier")
    assert state["progress"]["epoch"] == 2
    assert all(bool(t.isfinite().all()) for t in state["model"].values() if t.is_floating_point())


def test_a_gradient_that_is_not_finite_is_named():
    config = small(optim={"max_skipped": 1})

    class BadGradient(ClassifierTask):
        def step(self, batch, where):
            found = super().step(batch, where)
            zero = self.model.mixtures.logits.sum() * 0.0
            found.losses = found.losses._replace(total=found.losses.total + zero.sqrt())
            return found

    with pytest.raises(TrainingDivergedError, match=r"gradient of mixtures\.logits"):
        train(config, task=BadGradient(tiny_model(), config))


class Crash(Exception):
    pass


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("crash_at", [2, 3, 4, 6])
def test_going_on_is_exact(tmp_path, monkeypatch, crash_at, accumulate):
    config = small(
        optim={"epochs": 3, "accumulate": accumulate},
        loss={"consistency": 0.5},
        prototypes={"prototype_dropout": 0.2},
        trainer={"checkpoint_minutes": 0.0, "export": "best"},
    )
    validation = random_split(12, seed=1)
    whole, outcome = train(config, tmp_path / "whole", validation=validation)
    original = ClassifierTask.step
    calls = []

    def crash(self, batch, where):
        calls.append(where)
        if len(calls) > crash_at:
            raise Crash
        return original(self, batch, where)

    monkeypatch.setattr(ClassifierTask, "step", crash)
    with pytest.raises(Crash):
        train(config, tmp_path / "broken", validation=validation)
    monkeypatch.setattr(ClassifierTask, "step", original)
    checkpoints = tmp_path / "broken" / "checkpoints"
    state = read_checkpoint(checkpoints / "last.ckpt", "classifier")
    position = state["progress"]
    assert 3 * position["epoch"] + position["batch"] >= crash_at - (accumulate - 1)
    best = None
    if (checkpoints / "best.ckpt").is_file():
        best = read_checkpoint(checkpoints / "best.ckpt", "classifier")["average"]
    with seeded(99):  # fresh weights that must not matter
        task = ClassifierTask(tiny_model(), config)
    mended, again = train(config, tmp_path / "broken", state, task, best, validation=validation)
    assert equal(whole, mended)
    strip = [{k: v for k, v in row.items() if k != "minutes"} for row in outcome.progress.rows]
    assert strip == [
        {k: v for k, v in row.items() if k != "minutes"} for row in again.progress.rows
    ]
    with (tmp_path / "broken" / "log.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_best_weights_are_exported(monkeypatch):
    config = small(optim={"epochs": 3}, trainer={"export": "best", "monitor": "accuracy"})
    seen = []
    original = TrainingModule.finish_epoch

    def note(self):
        row = original(self)
        seen.append((row["val_accuracy"], {n: t.clone() for n, t in self.average.shadow.items()}))
        return row

    monkeypatch.setattr(TrainingModule, "finish_epoch", note)
    model, outcome = train(config, validation=random_split(9, seed=1))
    accuracies = [accuracy for accuracy, _ in seen]
    best = accuracies.index(max(accuracies))
    assert outcome.progress.best_epoch == best + 1
    assert torch.equal(model.mixtures.mean, seen[best][1]["mixtures.mean"])


def test_average_begins_after_the_data_dependent_start(monkeypatch):
    order = []
    start, make = ClassifierTask.initialize, MovingAverage.__init__

    def initialize(self, split):
        start(self, split)
        order.append(("start", self.model.mixtures.mean.clone()))

    def average(self, model, decay):
        make(self, model, decay)
        order.append(("average", self.shadow["mixtures.mean"].clone()))

    monkeypatch.setattr(ClassifierTask, "initialize", initialize)
    monkeypatch.setattr(MovingAverage, "__init__", average)
    train(small(optim={"epochs": 1}))
    assert [name for name, _ in order] == ["start", "average"]
    assert torch.equal(order[0][1], order[1][1])


def test_early_stop():
    config = small(
        optim={"epochs": 50, "lr": 0.0, "prototype_lr": 0.0, "ema_decay": 0.0},
        trainer={"patience": 2},
    )
    _, outcome = train(config, validation=random_split(9, seed=1))
    # Nothing moves but batch norm's statistics, which no longer matter while last layers are zero.
    assert outcome.progress.epoch < 50
    assert outcome.progress.done


def test_time_limit_ends_training():
    config = small(optim={"epochs": 10_000, "max_minutes": 0.005})
    _, outcome = train(config)
    assert outcome.progress.done
    assert outcome.progress.epoch < 10_000
    assert outcome.progress.rows[-1]["lr"] < 0.2 * config.optim.lr


def test_being_asked_to_stop_saves_first(tmp_path, monkeypatch):
    config = small()
    original = ClassifierTask.step

    def ask(self, batch, where):
        if (where.epoch, where.batch) == (1, 0):
            modules[0].stop_requested = True
        return original(self, batch, where)

    modules = []
    setup = TrainingModule.on_fit_start
    monkeypatch.setattr(
        TrainingModule, "on_fit_start", lambda self: (modules.append(self), setup(self))[1]
    )
    monkeypatch.setattr(ClassifierTask, "step", ask)
    _, outcome = train(config, tmp_path)
    assert outcome.signal != 0
    state = read_checkpoint(tmp_path / "checkpoints" / "last.ckpt", "classifier")
    assert (state["progress"]["epoch"], state["progress"]["batch"]) == (1, 1)
    assert not state["progress"]["done"]


def test_density_of_the_flow_alone():
    config = small(loss={"cross_entropy": 0.0}, optim={"lr": 5e-3, "epochs": 4})
    with seeded(0):
        task = DensityTask(tiny_model().flow.requires_grad_(True), config)
    model, outcome = train(config, task=task, validation=random_split(12, seed=1))
    rows = outcome.progress.rows
    assert rows[-1]["train_bits_per_dim"] < rows[0]["train_bits_per_dim"]
    assert "train_accuracy" not in rows[0]
    assert float(model.log_scale.detach().abs().sum()) > 0


def test_recorder_writes_no_checkpoint_in_the_middle_of_a_step(tmp_path):
    recorder = Recorder(tmp_path, "classifier", minutes=0.0)
    module = TrainingModule(
        ClassifierTask(tiny_model(), small(optim={"accumulate": 2})),
        small(optim={"accumulate": 2}),
        random_split(30),
    )
    module.progress.batch = 1
    recorder.on_train_batch_end(None, module)
    assert list(tmp_path.iterdir()) == []
