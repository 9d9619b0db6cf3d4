"""What holds for every test: no network, one seed, no display, no deadline on slow machines."""

import os
import random
import socket

import hypothesis
import numpy as np
import pytest
import torch

from tests.browser import browser as browser  # a fixture for all

# Before any test imports a library that reads them.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A first call into torch can take longer than hypothesis' default deadline. In CI the examples are
# the same every time, so that a red run can be repeated.
hypothesis.settings.register_profile(
    "protoflows", deadline=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("protoflows")


@pytest.fixture(autouse=True)
def _fixed_global_seeds():
    """Layers take their first weights from the global generators: make them the same every time."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Fail a test that reaches for another machine; sockets within this one stay usable."""
    connect = socket.socket.connect

    def guarded(self, address):
        local = self.family == getattr(socket, "AF_UNIX", None) or (
            isinstance(address, tuple)
            and (address[0] in {"localhost", "::1"} or str(address[0]).startswith("127."))
        )
        if not local:
            raise RuntimeError(f"a test tried to connect to {address}: tests never download")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
