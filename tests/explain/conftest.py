import pytest
import torch

from protoflows.data import DataConfig, load_data
from protoflows.training import fit_arrays
from tests.training.helpers import TINY


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's digits, which ship with it."""
    return load_data(DataConfig(name="digits"))


@pytest.fixture(scope="session")
def trained(digits):
    """A small model that has learned something: far above chance, in a few seconds."""
    torch.manual_seed(0)
    train = digits.train.select(torch.arange(500))
    return fit_arrays(
        train, num_classes=10, levels=17, image_shape=(1, 8, 8), epochs=6, seed=0,
        flow=TINY["flow"], prototypes={"num_prototypes": 2}, augmented=False,
        optim={"batch_size": 32, "warmup_epochs": 1.0, "lr": 3e-3},
    )  # fmt: skip
