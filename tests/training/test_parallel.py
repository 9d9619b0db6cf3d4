"""Two processes do what one does."""

import os
import socket
import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from protoflows.data import Augment, TensorBatches
from protoflows.flows import AffineCoupling, Chain, InvertibleConv, RoundTripWarning, SwapHalves
from protoflows.flows.nets import CouplingNet
from protoflows.training.datamodule import training_order
from protoflows.training.engine import seeded
from protoflows.training.task import ClassifierTask, Where
from tests.training.helpers import (
    TINY,
    random_split,
    tiny_config,
    tiny_model,
    weights_of,
)


def config_of(update):
    return tiny_config(
        optim={"batch_size": 12, "lr": 1e-2},
        loss={"consistency": 1.0, "diversity": 1.0, "consistency_ramp_epochs": 0.0},
        prototypes={"prototype_dropout": 0.3, "update": update, "init": "kmeans"},
    )


def split_with_unlabelled():
    split = random_split(24)
    split.labels[::5] = -1  # unevenly over the processes
    return split


def two_steps(update, rank, processes):
    """Two plain SGD steps, the gradients averaged over processes as DDP does it."""
    config, split = config_of(update), split_with_unlabelled()
    with seeded(0):
        task = ClassifierTask(tiny_model(), config)
    task.model.train()
    task.initialize(split)
    order = training_order(len(split), config, rank, processes)
    source = TensorBatches(split, order, Augment(config.augment, 17), two_views=True)
    params = [p for p in task.model.parameters() if p.requires_grad]
    for number, batch in enumerate(source):
        where = Where(0, number, order.total, order.share(number), order.size_of(number))
        step = task.step(batch, where)
        grads = torch.autograd.grad(step.losses.total, params, allow_unused=True)
        for parameter, grad in zip(params, grads, strict=True):
            if grad is None:
                continue
            if processes > 1:
                dist.all_reduce(grad)
            with torch.no_grad():
                parameter -= 1e-3 * grad / processes
        task.after_step(batch, step)
    return task.model


class Drifting(InvertibleConv):
    """A layer whose inverse may be wrong by a given amount."""

    drift = 0.0

    def inverse(self, z, context=None):
        return super().inverse(z, context) + self.drift


def chain_gradient(rank, processes, memory, drift=0.0):
    """A chain's gradient from this process's share of a batch, summed over processes."""
    with seeded(0):
        coupling = AffineCoupling(CouplingNet(2, 4, 4, 1, 3, False))
        coupling.net.project_out.weight.data.normal_(std=0.3)
        chain = Chain([Drifting(4), coupling, SwapHalves()], memory)
        x = torch.randn(8, 4, 3, 3)[rank::processes]
    chain.layers[0].drift = drift
    z, log_det = chain(x)
    grads = torch.autograd.grad(z.square().sum() + log_det.sum(), list(chain.parameters()))
    for grad in grads:
        if processes > 1:
            dist.all_reduce(grad)
    return grads


UPDATES = ("sgd", "em")


def child(rank, processes, port, out):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    limit = timedelta(minutes=5)  # processes out of step would wait for half an hour
    dist.init_process_group("gloo", rank=rank, world_size=processes, timeout=limit)
    for update in UPDATES:
        model = two_steps(update, rank, processes)
        torch.save(model.state_dict(), Path(out) / f"{update}{rank}.pt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grads = chain_gradient(rank, processes, "reversible", drift=float(rank))
    said = [str(w.message) for w in caught if w.category is RoundTripWarning]
    torch.save({"grads": grads, "said": said}, Path(out) / f"chain{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Where two processes have left what `child` computes."""
    place = tmp_path_factory.mktemp("parallel")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    mp.spawn(child, (2, port, str(place)), nprocs=2)
    return place


def test_a_round_trip_that_one_process_distrusts_is_replayed_by_all(found):
    """Or their exchanges of batch norm's moments would fall out of step."""
    sound, drifting = (torch.load(found / f"chain{r}.pt", weights_only=True) for r in (0, 1))
    assert sound["said"] == []
    assert "misses its input by" in drifting["said"][0]
    expected = chain_gradient(0, 1, "store")
    for one, two, wanted in zip(sound["grads"], drifting["grads"], expected, strict=True):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)


def test_same_global_batch_same_parameters(found):
    place = found
    with seeded(0):
        start = tiny_model().state_dict()
    for update in UPDATES:
        found = [torch.load(place / f"{update}{r}.pt", weights_only=True) for r in (0, 1)]
        alone = two_steps(update, 0, 1).state_dict()
        for name, expected in alone.items():
            torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-5, atol=1e-6)
            if expected.is_floating_point():
                torch.testing.assert_close(found[0][name], expected, rtol=2e-4, atol=2e-5, msg=name)
        moved = [
            n for n, t in alone.items() if t.is_floating_point() and not torch.equal(t, start[n])
        ]
        assert len(moved) > 20


def test_batches_that_processes_cannot_share():
    config = tiny_config(optim={"batch_size": 25})
    with pytest.raises(ValueError, match=r"optim.batch_size=25 cannot be shared equally by 2"):
        training_order(100, config, 0, 2)
    with pytest.raises(ValueError, match="1 training images are too few for 2"):
        training_order(1, replace(config, optim=tiny_config().optim), 0, 2)


@pytest.mark.slow
def test_the_command_on_two_processes(tmp_path):
    """`--trainer.devices 2` gives the run that one process gives, up to rounding."""
    import yaml

    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"optim": {"epochs": 1, "batch_size": 24, "lr": 1e-4}}))
    for devices in (1, 2):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "protoflows", "train", "--config", str(file)),
                *("--out", str(tmp_path / str(devices)), "--trainer.devices", str(devices)),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("results in") == 1  # from the first process alone
    one, two = weights_of(tmp_path / "1"), weights_of(tmp_path / "2")
    for name, tensor in one.items():
        # Adam turns rounding of near-zero gradients into steps of up to the learning rate.
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=2e-3, msg=name)
