"""`evaluate` and `compare` on a run that training made."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest

from protoflows.cli.evaluate import main as evaluate_command
from protoflows.cli.main import main
from protoflows.evaluation.table import Column, table_rows
from protoflows.training import train
from tests.training.helpers import tiny_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(tiny_config(optim={"epochs": 1}, augmented=True), folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "digits")


def metrics(run):
    return json.loads((run / "metrics.json").read_text())


def test_evaluate(run, capsys):
    assert main(["evaluate", str(run), "--mc", "3", "--tta", "1", "--limit", "50"]) == 0
    found = metrics(run)
    assert (found["images"], found["mc_samples"], found["tta"]) == (50, 3, 1)
    assert (found["data"], found["split"]) == ("digits", "test")
    out = capsys.readouterr().out
    assert f"{100 * found['accuracy']:.2f} ± " in out
    assert "paper" not in out  # it has no digits
    for name in ("reliability", "risk_coverage", "mc_curve", "distances"):
        assert (run / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert not (run / "evaluation" / "unfinished").exists()


def test_batch_size_and_split(run):
    assert main(["evaluate", str(run), "--mc", "2", "--split", "validation"]) == 0
    whole = metrics(run)
    assert (
        main(["evaluate", str(run), "--mc", "2", "--split", "validation", "--batch-size", "7"]) == 0
    )
    part = metrics(run)
    assert whole.keys() == part.keys()
    for name, value in whole.items():
        assert part[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4))


def test_interrupted_and_gone_on_with(run, monkeypatch, capsys):
    words = [str(run), "--mc", "2", "--limit", "40", "--batch-size", "10"]
    seen = []

    def interrupt(done, total):
        seen.append(done)
        if done == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr("protoflows.cli.evaluate.show_progress", interrupt)
    before = (run / "metrics.json").read_text()
    assert evaluate_command(words) == 130
    assert (run / "metrics.json").read_text() == before
    store = run / "evaluation" / "unfinished"
    assert len(list(store.glob("batch-*"))) == 2
    assert "to go on" in capsys.readouterr().err
    # Insisting on going on with other settings is refused, and nothing is lost by it.
    assert main(["evaluate", str(run), "--mc", "3", "--limit", "40", "--resume"]) == 1
    assert "begin afresh" in capsys.readouterr().err
    assert len(list(store.glob("batch-*"))) == 2
    monkeypatch.setattr("protoflows.cli.evaluate.show_progress", lambda done, total: None)
    assert evaluate_command([*words, "--resume"]) == 0
    resumed = metrics(run)
    assert evaluate_command([*words, "--fresh"]) == 0
    assert metrics(run) == resumed


@pytest.mark.slow
def test_started_by_torchrun(run):
    words = ["evaluate", str(run), "--mc", "2", "--batch-size", "50", "--device", "cpu"]
    assert main(words) == 0
    alone = metrics(run)
    (run / "metrics.json").unlink()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "-m", "protoflows"]
    found = subprocess.run(
        [*launcher, *words], check=True, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.stdout.count("results in") == 1
    assert metrics(run) == alone


def test_adaptive(run):
    words = ["evaluate", str(run), "--mc", "12", "--adaptive", "0.9", "--limit", "30"]
    assert main(words) == 0
    early = metrics(run)
    assert early["adaptive_passes"] == early["passes"]
    assert main([*words, "--verify"]) == 0
    checked = metrics(run)
    assert checked["adaptive_passes"] == early["passes"]
    assert 0 <= checked["adaptive_agreement_low"] <= checked["adaptive_agreement"] <= 1


def test_out_of_distribution(run, tmp_path, capsys):
    other = tmp_path / "other"
    from PIL import Image

    for name in ("a", "b"):
        (other / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (20, 16), (40 * i, 10, 200)).save(other / name / f"{i}.png")
    words = ["evaluate", str(run), "--mc", "2", "--limit", "20", "--ood", str(other)]
    assert main(words) == 0
    found = metrics(run)
    assert 0 <= found["ood_log_prob_auroc"] <= 1
    printed = capsys.readouterr().out
    assert "20 images of its own against 2 others" in printed
    assert f"{found['ood_log_prob_auroc']:.4f} ±" in printed


def test_other_data_that_is_not_there_is_said_before_the_passes(run, capsys, monkeypatch):
    monkeypatch.setattr("protoflows.evaluation.evaluate", None)  # not reached
    assert main(["evaluate", str(run), "--ood", str(run / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


def test_draws_of_densities_are_named_where_they_are_fewer():
    column = Column("run", {"mc_samples": 100, "mc_samples_density": 4})
    assert ["  for densities", "4"] in table_rows([column])
    column = Column("run", {"mc_samples": 4, "mc_samples_density": 4})
    assert [line[0] for line in table_rows([column])] == ["draws"]


@pytest.mark.parametrize(("words", "message"), [
    (["nowhere"], "there is no folder"),
    (["RUN", "--limit", "0"], "--limit must be"),
    (["RUN", "--mc", "0"], "samples must be"),
    (["RUN", "--adaptive", "2"], "adaptive must be"),
])  # fmt: skip
def test_errors(run, capsys, words, message):
    words = [str(run) if word == "RUN" else word for word in words]
    assert main(["evaluate", *words]) == 1
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_run(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "config.yaml" in capsys.readouterr().err


def test_verify_alone_is_a_usage_error(run):
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(run), "--verify"])


def test_views_of_a_run_without_augmentation(run, capsys):
    config = (run / "config.yaml").read_text()
    assert "augmented: true" in config
    (run / "config.yaml").write_text(config.replace("augmented: true", "augmented: false"))
    assert main(["evaluate", str(run), "--tta", "2"]) == 1
    assert "without augmentation" in capsys.readouterr().err


def test_compare(run, tmp_path, capsys):
    other = shutil.copytree(run, tmp_path / "other")
    for folder, draws in ((run, "1"), (other, "2")):
        assert main(["evaluate", str(folder), "--mc", draws, "--limit", "30"]) == 0
    content = metrics(other)
    content["data"] = "mnist"  # what the paper has, too
    (other / "metrics.json").write_text(json.dumps(content))
    (tmp_path / "notes").mkdir()
    capsys.readouterr()
    out = tmp_path / "comparison"
    words = [str(run), str(other), str(tmp_path / "notes"), "--out", str(out)]
    assert main(["compare", *words]) == 0
    printed = capsys.readouterr()
    assert "99.36" in printed.out
    assert "99.39" in printed.out
    assert "tab:pruneResults" in printed.out
    assert "notes is no evaluated run" in printed.err
    assert (out / "distances.png").stat().st_size > 5000
    head, *rows = csv.reader((out / "compare.csv").open())
    assert head[1:3] == [str(run), str(other)]
    by_name = {row[0]: row[1:] for row in rows}
    assert float(by_name["accuracy"][1]) == content["accuracy"]
    assert by_name["mc_samples"][:2] == ["1", "2"]
    assert main(["compare", str(other), "--no-paper"]) == 0
    assert "99.36" not in capsys.readouterr().out


def test_compare_without_any_run(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 1
    assert "protoflows evaluate" in capsys.readouterr().err
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 1
    assert "none of these" in capsys.readouterr().err
