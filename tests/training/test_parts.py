"""Schedule, noise seeds, moving average, progress, checkpoints."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from protoflows.flows.nets import BatchNorm
from protoflows.training import MovingAverage, OptimConfig
from protoflows.training.checkpoint import read_checkpoint, write_checkpoint
from protoflows.training.progress import Progress
from protoflows.training.schedule import lr_factor, share_done
from protoflows.training.seeds import SECOND_VIEW, TRAIN, image_noise_seeds
from protoflows.training.task import Sums


def test_schedule_warms_up_and_comes_down():
    config = OptimConfig(epochs=10, warmup_epochs=2.0)
    factors = [lr_factor(config, step, 5) for step in range(50)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[30] == pytest.approx(0.5 * (1 + math.cos(math.pi / 2)))
    assert 0 < factors[-1] < 0.01


def test_schedule_ends_where_it_is_told():
    config = OptimConfig(epochs=1, warmup_epochs=0.0, final_lr=0.1)
    assert lr_factor(config, 1000, 1000) == pytest.approx(0.1)


def test_limited_time_brings_the_learning_rate_down():
    config = OptimConfig(epochs=100, warmup_epochs=0.0, max_minutes=10.0)
    assert lr_factor(config, 1, 10, elapsed=5.0) == pytest.approx(0.5)
    assert lr_factor(config, 1, 10, elapsed=10.0) == pytest.approx(0.0, abs=1e-12)
    assert lr_factor(config, 500, 10, elapsed=0.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("step", "elapsed", "share"), [(0, 0.0, 0.0), (50, 1.0, 0.25), (50, 5.0, 0.5), (300, 0.0, 1.0)]
)
def test_share_done_counts_steps_or_time(step, elapsed, share):
    config = OptimConfig(epochs=10, max_minutes=10.0)
    assert share_done(config, step, 20, elapsed) == pytest.approx(share)


def test_constant_schedule():
    config = OptimConfig(epochs=2, warmup_epochs=1.0, schedule="constant")
    assert [lr_factor(config, s, 2) for s in range(4)] == [0.5, 1, 1, 1]


@given(
    st.lists(st.integers(0, 10**9), min_size=2, max_size=20, unique=True),
    st.integers(0, 2**31),
    st.integers(0, 500),
)
def test_noise_seeds_belong_to_the_image(index, seed, epoch):
    index = torch.tensor(index)
    seeds = image_noise_seeds(index, seed, epoch, TRAIN)
    assert torch.equal(seeds.flip(0), image_noise_seeds(index.flip(0), seed, epoch, TRAIN))
    assert len(seeds.unique()) == len(seeds)
    assert int(seeds.min()) >= 0
    for other in (
        image_noise_seeds(index, seed + 1, epoch, TRAIN),
        image_noise_seeds(index, seed, epoch + 1, TRAIN),
        image_noise_seeds(index, seed, epoch, SECOND_VIEW),
    ):
        assert not bool((other == seeds).any())


def test_noise_seeds_differ_in_the_32_bits_that_generators_read():
    low = image_noise_seeds(torch.arange(20_000), 0, 0, TRAIN) & 0xFFFFFFFF
    assert len(low.unique()) > 19_990


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.norm = BatchNorm(2)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))


def test_average_by_hand():
    model = Small()
    average = MovingAverage(model, decay=0.9)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.norm.running_mean.fill_(2.0)
    average.update(model, step=1)  # decay 2 / 11
    assert average.shadow["weight"].tolist() == pytest.approx([9 / 11] * 2)
    assert average.shadow["norm.running_mean"].tolist() == pytest.approx([18 / 11] * 2)
    average.update(model, step=10**6)  # decay 0.9
    assert average.shadow["weight"].tolist() == pytest.approx([1 - 0.9 * 2 / 11] * 2)
    assert "mask" not in average.shadow


def test_no_decay_is_the_weights_themselves():
    model = Small()
    average = MovingAverage(model, decay=0.0)
    with torch.no_grad():
        model.weight.fill_(3.0)
    average.update(model, step=5)
    assert average.shadow["weight"].tolist() == [3.0, 3.0]


def test_average_is_applied_and_taken_back_even_on_errors():
    model = Small()
    average = MovingAverage(model, decay=0.9)
    parameter = model.weight
    with torch.no_grad():
        model.weight.fill_(1.0)

    def fail():
        with average.applied(model):
            assert model.weight.tolist() == [0.0, 0.0]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.weight is parameter
    assert model.weight.tolist() == [1.0, 1.0]


def test_ruined_statistics_are_mended():
    model = Small()
    average = MovingAverage(model, decay=0.9)
    model.train()
    model.norm(torch.full((2, 2, 1, 1), math.nan))
    assert not bool(model.norm.running_mean.isfinite().any())
    average.mend_statistics(model)
    assert model.norm.running_mean.tolist() == [0.0, 0.0]
    assert model.norm.running_var.tolist() == [1.0, 1.0]


def test_average_of_another_model_is_refused():
    with pytest.raises(ValueError, match="another model"):
        MovingAverage(Small(), 0.9).load({"weight": torch.zeros(2)})


def test_progress_comes_back_from_plain_containers():
    progress = Progress()
    progress.count(Sums(4, 3, 2, 1.5, 8), {"loss": 1.0})
    progress.count(Sums(4, 3, 3, 0.5, 4), {"loss": 2.0})
    assert progress.figures() == {
        "train_loss": 1.5,
        "train_accuracy": 5 / 6,
        "train_cross_entropy": 2 / 6,
        "train_bits_per_dim": 12 / 8,
    }
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress
    assert isinstance(other.sums, Sums)
    other.next_epoch()
    assert (other.epoch, other.batch, other.figures()) == (1, 0, {})


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), RuntimeError("stream writer: No space")],
)
def test_checkpoints_are_replaced_whole(tmp_path, monkeypatch, error):
    path = tmp_path / "checkpoints" / "last.ckpt"
    write_checkpoint(path, {"kind": "classifier", "x": torch.arange(3)})

    def break_off(content, file):
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", break_off)
    with pytest.raises(OSError, match="No space.*the one before it is kept"):
        write_checkpoint(path, {"kind": "classifier", "x": torch.arange(4)})
    assert read_checkpoint(path, "classifier")["x"].tolist() == [0, 1, 2]
    assert [p.name for p in path.parent.iterdir()] == ["last.ckpt"]


def test_checkpoints_hold_no_code(tmp_path):
    torch.save({"format": 1, "kind": "classifier", "x": Progress()}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="cannot be read") as refused:
        read_checkpoint(tmp_path / "a.ckpt", "classifier")
    assert "weights_only" not in str(refused.value)  # no advice to load it unsafely


def test_checkpoints_of_other_versions_and_kinds_are_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    torch.save({"format": 99, "kind": "classifier"}, path)
    with pytest.raises(ValueError, match="another version.*99"):
        read_checkpoint(path, "classifier")
    write_checkpoint(path, {"kind": "density"})
    with pytest.raises(ValueError, match="density run's"):
        read_checkpoint(path, "classifier")
    path.write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(path, "classifier")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        read_checkpoint(tmp_path / "b.ckpt", "classifier")
