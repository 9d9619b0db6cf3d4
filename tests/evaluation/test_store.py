import pytest
import torch

from protoflows.evaluation import run_passes
from protoflows.evaluation.store import BatchStore
from tests.evaluation.helpers import counted_rows
from tests.evaluation.test_passes import assert_same
from tests.model.helpers import small_model, some_images


class InterruptedError_(Exception):
    pass


def interrupt_after(batches):
    """A progress report that stops the evaluation after so many batches."""
    done = []

    def progress(images, total):
        done.append(images)
        if len(done) == batches:
            raise InterruptedError_

    return progress


def test_an_interrupted_evaluation_goes_on(tmp_path, monkeypatch):
    model, x = small_model(), some_images(10)
    options = {"samples": 2, "batch_size": 3, "collect": ("curve", "robustness")}
    store = tmp_path / "unfinished"
    with pytest.raises(InterruptedError_):
        run_passes(model, x, store=store, progress=interrupt_after(2), **options)
    with counted_rows(model, monkeypatch) as rows:
        found = run_passes(model, x, store=store, **options)
    assert sum(rows) == 4 * 3  # the last four images; two draws and a noisy one
    assert_same(found, run_passes(model, x, **options), rtol=0, atol=0)


def test_a_batch_cut_short_is_made_again(tmp_path, monkeypatch):
    model, x = small_model(), some_images(6)
    run_passes(model, x, samples=1, batch_size=3, store=tmp_path / "s")
    batch = tmp_path / "s" / "batch-000000003.safetensors"
    batch.write_bytes(batch.read_bytes()[:50])
    with counted_rows(model, monkeypatch) as rows:
        run_passes(model, x, samples=1, batch_size=3, store=tmp_path / "s")
    assert rows == [3]


@pytest.mark.parametrize("change", ["samples", "seed", "batch_size", "images", "weights", "config"])
def test_batches_of_another_evaluation_are_refused_or_cleared(tmp_path, monkeypatch, change):
    model, x = small_model(), some_images(4)
    options = {"samples": 2, "seed": 0, "batch_size": 2}
    store = tmp_path / "s"
    run_passes(model, x, store=store, **options)
    if change == "images":
        x = x.clone()
        x[0, 0, 0, 0] ^= 1
    elif change == "weights":
        with torch.no_grad():
            model.mixtures.mean[0, 0, 0] += 1e-3
    elif change == "config":
        model = small_model(logit_temperature=2.0)
    else:
        options[change] += 1
    with pytest.raises(ValueError, match="another model"):
        run_passes(model, x, store=store, **options)
    with counted_rows(model, monkeypatch) as rows:
        run_passes(model, x, store=store, mismatch="clear", **options)
    assert sum(rows) == 4 * options["samples"]


def test_other_peoples_files_stay(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    for mismatch in ("refuse", "clear"):
        with pytest.raises(ValueError, match="other files"):
            BatchStore(tmp_path, "mark", mismatch=mismatch)
    assert (tmp_path / "thesis.tex").read_text() == "all of it"
    with pytest.raises(ValueError, match="mismatch"):
        BatchStore(tmp_path / "new", "mark", mismatch="overwrite")
