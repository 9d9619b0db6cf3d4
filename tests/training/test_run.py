"""Run folders: what is in them, going on with them, and everything that must be refused."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import yaml

import protoflows.training.run as run_module
import protoflows.training.runfolder as runfolder
from protoflows.data import DataBundle, Split
from protoflows.model import load
from protoflows.training import fit_arrays, measure, pretrain, resume, train
from protoflows.training.flow_weights import pretrained_flow, read_flow, save_flow
from tests.flows import reference_fixture as fixture
from tests.training.helpers import (
    TINY,
    log_without_time,
    random_split,
    tiny_config,
    tiny_model,
    weights_of,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return train(tiny_config(), folder, argv=["protoflows", "train"])


def test_what_a_run_folder_holds(run):
    assert {p.name for p in run.folder.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "log.csv",
        "metrics.json",
        "model",
        "versions.json",
    }
    head = json.loads((run.folder / "versions.json").read_text())
    assert head["command"] == ["protoflows", "train"]
    assert len(head["data_fingerprint"]) == 64
    assert head["seed"] == 0
    assert head["versions"]["torch"] == torch.__version__
    assert head["minutes"] > 0
    assert len(log_without_time(run.folder)) == 4  # the head and three epochs
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["flow"]["image_shape"] == [1, 8, 8]
    assert config["flow"]["levels"] == 17


def test_metrics_are_the_saved_models(run):
    metrics = json.loads((run.folder / "metrics.json").read_text())
    assert metrics == run.metrics
    assert metrics["dims"] == 64
    assert metrics["bits_per_image"] == pytest.approx(64 * metrics["bits_per_dim"])
    assert metrics["bits_per_image"] <= metrics["bits_per_image_mean_bound"]
    from protoflows.data import load_data

    model, test = load(run.folder), load_data(tiny_config().data).test
    assert len(test) == metrics["images"]
    log_prob = model.log_prob(test.images, samples=2, seed=0)
    bits = -float(log_prob.detach().mean()) / 0.6931471805599453
    assert bits == pytest.approx(metrics["bits_per_image"], rel=1e-6)
    predicted = model.predict(test.images, samples=2, seed=0)
    assert float((predicted == test.labels).float().mean()) == pytest.approx(metrics["accuracy"])


def test_nets_compute_in_float32_once_trained(tmp_path):
    config = tiny_config(optim={"epochs": 1}, flow={"net_dtype": "bfloat16"})
    run = train(config, tmp_path / "run")
    model = load(run.folder)
    assert model.config.flow.net_dtype == "float32"
    x = model.extras.images[:5]
    assert torch.equal(model.flow.decode(model.flow.encode(x, seed=0)), x)


def test_the_model_takes_along_what_explanations_need(run):
    extras = load(run.folder).extras
    assert extras.mean_image.shape == (1, 8, 8)
    assert extras.log_prob_quantiles.shape == (101,)
    assert set(extras.labels.tolist()) == set(range(10))
    assert extras.metrics["accuracy"] == run.metrics["accuracy"]


def test_checkpoints_load_without_running_code(run):
    for name in ("last", "best"):
        path = run.folder / "checkpoints" / f"{name}.ckpt"
        content = torch.load(path, weights_only=True)
        assert content["config"]["optim"]["epochs"] == 3


def test_a_complete_run_is_left_alone(run):
    before = (run.folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    again = resume(run.folder)
    assert again.metrics == run.metrics
    assert (run.folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before


def test_an_existing_run_is_not_overwritten_unless_asked(run, tmp_path):
    with pytest.raises(ValueError, match=r"holds a run already.*--resume.*--overwrite"):
        train(tiny_config(), run.folder)
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    (copy / "notes.txt").write_text("mine")
    again = train(tiny_config(), copy, overwrite=True)
    assert (copy / "notes.txt").read_text() == "mine"
    # The same seed gives the same figures, log and weights.
    assert again.metrics == run.metrics
    assert log_without_time(copy) == log_without_time(run.folder)
    first, second = weights_of(run.folder), weights_of(copy)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"other files \(thesis.tex\)"):
        train(tiny_config(), tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    with pytest.raises(ValueError, match="is a file"):
        train(tiny_config(), tmp_path / "thesis.tex")


def test_an_unwritable_folder_is_refused_before_training(tmp_path, monkeypatch):
    def no(self, data):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "write_bytes", no)  # the superuser may write anywhere
    with pytest.raises(ValueError, match="cannot write to .*Permission denied"):
        train(tiny_config(), tmp_path / "run")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ValueError, match="cannot write to"):
        train(tiny_config(), tmp_path / "run")


def test_a_full_disk_is_refused_before_training(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(runfolder.shutil, "disk_usage", lambda _: usage._replace(free=5 * 2**20))
    with pytest.raises(ValueError, match="5 MiB free, the run needs"):
        train(tiny_config(), tmp_path / "run")


def test_going_on_needs_a_run(tmp_path, run):
    with pytest.raises(FileNotFoundError, match=r"holds no run \(config.yaml is missing\)"):
        resume(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    (copy / "metrics.json").unlink()
    (copy / "versions.json").write_text("{")
    with pytest.raises(ValueError, match="versions.json is damaged"):
        resume(copy)


def test_going_on_with_other_data_is_refused(tmp_path, run):
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    (copy / "metrics.json").unlink()
    head = json.loads((copy / "versions.json").read_text())
    (copy / "versions.json").write_text(json.dumps(head | {"data_fingerprint": "0" * 64}))
    with pytest.raises(ValueError, match="fingerprint"):
        resume(copy)


def test_going_on_with_another_versions_checkpoint_is_refused(tmp_path, run):
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    (copy / "metrics.json").unlink()
    path = copy / "checkpoints" / "last.ckpt"
    torch.save(torch.load(path, weights_only=True) | {"format": 99}, path)
    with pytest.raises(ValueError, match="another version"):
        resume(copy)


def test_figures_lost_after_training_are_made_again(tmp_path, run):
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    (copy / "metrics.json").unlink()
    shutil.rmtree(copy / "model")
    assert resume(copy).metrics == run.metrics
    first, second = weights_of(run.folder), weights_of(copy)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_damaged_figures_are_named_and_an_import_has_no_training(tmp_path, run):
    copy = tmp_path / "run"
    shutil.copytree(run.folder, copy)
    (copy / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match=r"metrics\.json is damaged.*measured again"):
        resume(copy)
    head = json.loads((copy / "versions.json").read_text())
    (copy / "versions.json").write_text(json.dumps({**head, "kind": "import"}))
    with pytest.raises(ValueError, match="no training to go on with"):
        resume(copy)


def test_one_class_is_refused(tmp_path, monkeypatch):
    split = Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    bundle = DataBundle("ones", split, split, ("one",), 17)
    monkeypatch.setattr(run_module, "load_data", lambda config: bundle)
    with pytest.raises(ValueError, match="'ones' has one class"):
        train(tiny_config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_flow_alone_then_the_classifier_from_it(tmp_path):
    first = pretrain(tiny_config(), tmp_path / "flow")
    assert set(first.metrics) >= {"bits_per_dim", "bits_per_image", "dims"}
    assert "accuracy" not in first.metrics
    flow = read_flow(tmp_path / "flow" / "flow")
    config = tiny_config(flow={"memory": "checkpoint"})
    started = pretrained_flow(tmp_path / "flow", replace(flow.config, memory="checkpoint"))
    assert started.config.memory == "checkpoint"
    for name, tensor in flow.state_dict().items():
        assert torch.equal(started.state_dict()[name], tensor)
    config = replace(
        config,
        flow_weights=str(tmp_path / "flow"),
        flow=replace(config.flow, mid_channels=(99,)),  # the weights' own width counts
    )
    second = train(config, tmp_path / "run")
    assert load(second.folder).config.flow.mid_channels == (8,)
    assert resume(tmp_path / "flow").metrics == first.metrics


def test_flow_weights_that_do_not_fit(tmp_path):
    wanted = tiny_model().flow.config
    with pytest.raises(FileNotFoundError, match="flow_weights: there is nothing at"):
        pretrained_flow(tmp_path / "nothing", wanted)
    place = fixture.save_protoflow(tmp_path / "published")
    with pytest.raises(ValueError, match=r"3 channels and 256 levels.*--data.channels 3"):
        pretrained_flow(place, wanted)
    started = pretrained_flow(place, replace(wanted, image_shape=(3, 64, 64), levels=256))
    assert started.config.image_shape == (3, 64, 64)
    with torch.no_grad():
        x = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
        assert bool(started.eval().log_prob(x, seed=0).isfinite().all())


def test_flow_weights_that_are_damaged_or_not_there_yet(tmp_path):
    wanted = tiny_model().flow.config
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("seed: 0")
    with pytest.raises(ValueError, match="a run that has not ended"):
        pretrained_flow(tmp_path / "run", wanted)
    place = tmp_path / "flow"
    save_flow(tiny_model().flow, place)
    (place / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="describes no flow"):
        pretrained_flow(place, wanted)
    (place / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"saved in .*flow is damaged"):
        pretrained_flow(place, wanted)
    save_flow(tiny_model().flow, place)
    (place / "model.safetensors").write_bytes(b"\0")
    with pytest.raises(ValueError, match=r"saved in .*flow is damaged"):
        pretrained_flow(place, wanted)


def test_arrays_in_memory():
    split = random_split(60)
    for label in range(3):
        split.images[split.labels == label, :, 3 * label : 3 * label + 2] = 16
    overrides = {k: v for k, v in TINY.items() if k in ("flow", "prototypes")}
    arguments = dict(
        num_classes=3, levels=17, image_shape=(1, 8, 8), epochs=6, seed=0,
        optim={"batch_size": 12, "lr": 5e-3}, **overrides,
    )  # fmt: skip
    model = fit_arrays(split, **arguments)
    assert float((model.predict(split.images) == split.labels).float().mean()) > 0.9
    assert not model.training
    again = fit_arrays(split, **arguments)
    assert torch.equal(model.mixtures.mean, again.mixtures.mean)
    with pytest.raises(ValueError, match="unknown setting 'optim.lrr'"):
        fit_arrays(split, **(arguments | {"optim": {"lrr": 1}}))
    with pytest.raises(ValueError, match="image_shape"):
        fit_arrays(split, **(arguments | {"image_shape": (1, 9, 9)}))
    with pytest.raises(ValueError, match="num_classes"):
        fit_arrays(split, **(arguments | {"num_classes": 1}))


def test_figures_by_hand(monkeypatch):
    """Two images, two classes, two draws, given log p(x|c)."""
    from protoflows.model import ProtoFlow
    from protoflows.model.montecarlo import Scores

    draws = [
        torch.tensor([[-40.0, -45.0], [-60.0, -50.0]], dtype=torch.float64),
        torch.tensor([[-42.0, -41.0], [-50.0, -57.0]], dtype=torch.float64),
    ]
    waiting = iter(draws)
    monkeypatch.setattr(
        ProtoFlow, "score", lambda self, x, seeds: Scores(next(waiting), None, None, None)
    )
    split = Split(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 0]))
    found = measure(tiny_model(num_classes=2), split, samples=2, seed=0, batch_size=8)
    # Averages: (-41, -43) and (-55, -53.5): the first image is right, the second wrong.
    assert found["accuracy"] == 0.5
    table = torch.stack(draws)
    by_class = table.logsumexp(0) - torch.log(torch.tensor(2.0))
    expected = -(by_class.logsumexp(1) - torch.log(torch.tensor(2.0))).mean() / torch.log(
        torch.tensor(2.0)
    )
    assert found["bits_per_image"] == pytest.approx(float(expected))
    assert found["bits_per_dim"] == pytest.approx(float(expected) / 64)
    assert found["images"] == 2


COMMAND = [sys.executable, "-m", "protoflows", "train"]


def start(tmp_path, name, **trainer):
    settings = TINY | {"trainer": TINY["trainer"] | {"checkpoint_minutes": 0.0} | trainer}
    settings["optim"] = {"epochs": 40, "batch_size": 24}
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = [*COMMAND, "--config", str(file), "--out", str(tmp_path / name)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_for_checkpoint(process, folder, limit=120.0):
    path, end = folder / "checkpoints" / "last.ckpt", time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        if path.is_file():
            time.sleep(0.3)  # some steps into the run
            return
        time.sleep(0.01)
    raise AssertionError(f"no checkpoint: {process.communicate()}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    process = start(folder, "run")
    assert process.wait(timeout=300) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_going_on_after_a_signal_gives_the_same_weights(tmp_path, whole, number):
    broken = start(tmp_path, "broken")
    folder = tmp_path / "broken"
    wait_for_checkpoint(broken, folder)
    broken.send_signal(number)
    _, message = broken.communicate(timeout=60)
    assert not (folder / "metrics.json").exists()
    if number == signal.SIGINT:
        assert broken.returncode == 130
        assert f"protoflows train --resume {folder}" in message
        assert "Traceback" not in message
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert 0 < state["progress"]["step"] < 40 * 4
    done = subprocess.run(
        [*COMMAND, "--resume", str(folder)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = weights_of(whole), weights_of(folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert log_without_time(whole) == log_without_time(folder)
    metrics = [json.loads((place / "metrics.json").read_text()) for place in (whole, folder)]
    assert metrics[0] == metrics[1]
