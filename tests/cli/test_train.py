import json
import shutil
import signal

import pytest
import torch
import yaml
from PIL import Image

import protoflows as pf
from protoflows.cli import options
from protoflows.cli.main import main
from protoflows.training.module import TrainingDivergedError
from tests.flows import reference_fixture as fixture
from tests.training.helpers import TINY


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    return str(file)


def config_of(*argv, recipe=None):
    parser = options.training_parser("train", "text")
    return options.settings(options.parse(parser, argv), recipe)


def test_train_without_arguments_is_digits():
    config = config_of()
    assert config.data.name == "digits"
    assert config == config_of("--recipe", "digits")


def test_data_chooses_the_recipe():
    assert config_of("mnist").optim == config_of("mnist", "--recipe", "compact").optim
    assert config_of("mnist").data.name == "mnist"
    assert config_of("cifar10", "--recipe", "paper-mnist").data.name == "cifar10"


def test_recipe_then_file_then_options(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("optim: {lr: 3e-3, epochs: 7}\nprototypes: {num_prototypes: 4}\n")
    config = config_of("--config", str(file), "--optim.lr", "3e-4", "--flow.couplings", "[3,5]")
    assert config.optim.lr == 3e-4  # the option's
    assert config.optim.epochs == 7  # the file's
    assert config.prototypes.num_prototypes == 4
    assert config.flow.couplings == (3, 5)
    assert config.optim.batch_size == config_of().optim.batch_size  # the recipe's


def test_a_file_can_name_its_recipe(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("recipe: paper-cifar10\nseed: 4\n")
    config = config_of("--config", str(file))
    assert (config.data.name, config.optim.epochs, config.seed) == ("cifar10", 150, 4)


def test_short_options():
    config = config_of("mnist", "--data-root", "d", "--strict", "--flow-weights", "w")
    assert (config.data.root, config.data.strict, config.flow_weights) == ("d", True, "w")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--optim.lrr", "1"], "unknown option --optim.lrr. Did you mean '--optim.lr'"),
        (["--optim.l", "1"], "unknown option --optim.l."),
        (["--optim.lr", "fast"], "--optim.lr must be a number, got 'fast'"),
        (["--optim.epochs=x"], "--optim.epochs must be a whole number, got 'x'"),
        (["--data.limit", "many"], "--data.limit must be a whole number or null, got 'many'"),
        (["--prototypes.init", "magic"], "must be one of 'kmeans', 'random', got 'magic'"),
        (["--flow.units", "1,1"], "a list (a whole number) such as [2, 4], got '1,1'"),
        (["--optim", "3"], "--optim must be settings by name, such as --optim.epochs, got '3'"),
        (["--flow", '{"unit": [1]}'], "Did you mean 'flow.units'"),
    ],
)
def test_wrong_options_exit_with_2(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", *argv])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--recipe", "digts"], "unknown recipe 'digts'. Did you mean 'digits'"),
        (["mnits"], "Did you mean 'mnist'"),
        (["mnist"], "data.root is needed"),
        (["./no/such/folder"], "no/such/folder"),
        (["--optim.lr", "-1"], "optim.lr must be a finite number"),
        (["--config", "none.yaml"], "no configuration file at none.yaml"),
        (["--resume", "no/run"], "holds no run"),
        (["--resume", "no/run", "--seed", "3"], "leave out seed"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_1(argv, message, capsys):
    assert main(["train", *argv]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("protoflows train: error: ")
    assert "Traceback" not in err


def test_wrong_keys_in_a_file(tmp_path, capsys):
    file = tmp_path / "my.yaml"
    file.write_text("prototypes: {num_prototype: 4}")
    assert main(["train", "--config", str(file)]) == 1
    assert "Did you mean 'prototypes.num_prototypes'" in capsys.readouterr().err


def test_a_section_of_a_file_that_is_no_section(tmp_path, capsys):
    file = tmp_path / "my.yaml"
    file.write_text("data: mnist")
    assert main(["train", "--config", str(file)]) == 1
    assert "data must hold keys and values, got 'mnist'" in capsys.readouterr().err


def ctrl_c_in_lightning():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise SystemExit(1)  # noqa: B904  # as Lightning's `exit(1)` does


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("how", [ctrl_c_in_lightning, signal.default_int_handler])
def test_ctrl_c_outside_the_training_loop_says_how_to_go_on(
    tiny, tmp_path, monkeypatch, capsys, how, checkpoint
):
    """A second Ctrl-C during a step, or one while the finished model is measured."""
    out = tmp_path / "run"

    def interrupted(config, folder, **options):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "versions.json").write_text("{}")
        if checkpoint:
            (folder / "checkpoints" / "last.ckpt").write_bytes(b"")
        how(*(() if how is ctrl_c_in_lightning else (signal.SIGINT, None)))

    monkeypatch.setattr("protoflows.training.train", interrupted)
    assert main(["train", "--config", tiny, "--out", str(out)]) == 130
    said = capsys.readouterr().err
    assert ("a checkpoint is written" in said) == checkpoint
    assert f"protoflows train --resume {out}" in said


def test_ctrl_c_before_a_run_is_begun_does_not_point_to_an_older_one(
    tiny, tmp_path, monkeypatch, capsys
):
    (tmp_path / "versions.json").write_text("{}")

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("protoflows.training.train", interrupted)
    assert main(["train", "--config", tiny, "--out", str(tmp_path)]) == 130
    assert "--resume" not in capsys.readouterr().err


def test_help_documents_every_field(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in (
        "--optim.lr", "Learning rate of the flow", "--flow.units", "Units of each block",
        "--data.limit", "--augment.rotate", "--loss.elbo", "--prototypes.num_prototypes",
        "--trainer.devices", "--recipe", "--resume", "paper-cifar10",
    ):  # fmt: skip
        assert text in out


def test_a_run_from_the_command_line(tiny, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "--config", tiny, "--out", str(out), "--seed", "2"]) == 0
    said = capsys.readouterr().out
    metrics = json.loads((out / "metrics.json").read_text())
    assert f"{100 * metrics['accuracy']:.2f} %" in said
    assert "17 levels" in said
    assert str(out) in said
    assert json.loads((out / "versions.json").read_text())["seed"] == 2
    assert pf.load(out).config.class_names == tuple("0123456789")
    assert main(["train", "--config", tiny, "--out", str(out)]) == 1
    assert "holds a run already" in capsys.readouterr().err


def test_the_default_folder_is_named_after_the_data(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config", tiny, "--optim.epochs", "1"]) == 0
    assert (tmp_path / "runs" / "digits" / "metrics.json").is_file()
    assert main(["pretrain", "--config", tiny, "--optim.epochs", "1"]) == 0
    assert (tmp_path / "runs" / "digits-flow" / "flow" / "model.safetensors").is_file()
    assert "runs/digits-flow" in capsys.readouterr().out


def test_a_progress_line_per_epoch(tiny, tmp_path, capsys):
    argv = ["--config", tiny, "--out", str(tmp_path / "run"), "--trainer.progress", "true"]
    assert main(["train", *argv]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    for word in ("epoch 2/3", "loss", "accuracy", "bits/dim", "validation", "left"):
        assert word in lines[1]


def test_an_image_folder(tiny, tmp_path):
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(12):
            pixels = torch.randint(0, 100, (8, 8), generator=generator) + 120 * label
            picture = Image.fromarray(pixels.to(torch.uint8).numpy())
            picture.save(tmp_path / "pictures" / name / f"{i}.png")
    argv = [
        *("train", str(tmp_path / "pictures"), "--config", tiny, "--out", str(tmp_path / "run")),
        *("--recipe", "digits", "--data.image_size", "8", "--optim.batch_size", "4"),
    ]
    assert main(argv) == 0
    assert pf.load(tmp_path / "run").config.class_names == ("dark", "light")


def test_divergence_is_reported(tiny, tmp_path, monkeypatch, capsys):
    def diverge(self, *arguments):
        raise TrainingDivergedError("training has diverged: the loss term elbo was not finite")

    monkeypatch.setattr("protoflows.training.module.TrainingModule.training_step", diverge)
    assert main(["train", "--config", tiny, "--out", str(tmp_path / "run")]) == 1
    assert "protoflows train: error: training has diverged" in capsys.readouterr().err


def test_a_published_checkpoint_becomes_a_run(tmp_path, capsys):
    source = fixture.save_protoflow(tmp_path / "published")
    assert main(["import", str(source), "--out", str(tmp_path / "run")]) == 0
    # Names what is there: without data nothing is measured.
    assert f"{tmp_path / 'run'} (model/)" in capsys.readouterr().out
    head = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert (head["kind"], head["command"][1:3]) == ("import", ["import", str(source)])
    model = pf.load(tmp_path / "run")
    expected = fixture.values()
    enc = model.encode(expected["x"], temperature=0)
    found = model.class_log_likelihood(enc).detach()
    assert float((found - expected["class_log_likelihood"]).abs().max()) < 0.01
    again = ["import", str(source), "--out", str(tmp_path / "run")]
    assert main(again) == 1
    assert main([*again, "--overwrite"]) == 0
    assert main(["import", str(tmp_path / "nothing"), "--out", str(tmp_path / "other")]) == 1
    assert "nothing" in capsys.readouterr().err


def test_a_published_checkpoint_is_measured_on_data(tmp_path, capsys):
    source = fixture.save_protoflow(tmp_path / "published")
    classes = fixture.values()["class_log_likelihood"].shape[1]
    generator = torch.Generator().manual_seed(0)
    for label in range(classes):
        (tmp_path / "data" / f"c{label}").mkdir(parents=True)
        for i in range(3):
            pixels = torch.randint(0, 256, (32, 32, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "data" / f"c{label}" / f"{i}.png")
    out = tmp_path / "run"
    argv = ["import", str(source), "--out", str(out), "--data", str(tmp_path / "data")]
    assert main(argv) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["images"] > 0
    assert pf.load(out).config.class_names == tuple(f"c{label}" for label in range(classes))
    shutil.rmtree(tmp_path / "data" / "c0")
    assert main([*argv, "--overwrite"]) == 1
    assert f"the checkpoint has {classes}" in capsys.readouterr().err


def test_commands_are_listed(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    for name in ("train", "pretrain", "import"):
        assert name in out
    with pytest.raises(SystemExit) as stop:
        main(["trian"])
    assert stop.value.code == 2
    assert "trian" in capsys.readouterr().err
