"""`protoflows app`, from its start to its end."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from protoflows.cli.app import main


def test_an_unknown_run_is_named():
    with pytest.raises(FileNotFoundError, match="there is no model 'no-such-run'"):
        main(["no-such-run"])


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_starts_anywhere_and_ends_clean(tmp_path, ending):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "protoflows", "app", "digits", "--images", "50"]
    started = subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        line = started.stdout.readline()
        assert line.startswith("exploring digits at http://127.0.0.1:")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(line.split()[3], timeout=60) as answer:
            assert answer.status == 200
        started.send_signal(ending)
        rest, errors = started.communicate(timeout=120)
    finally:
        started.kill()
    assert started.returncode == 0, errors
    assert "Traceback" not in rest + errors
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("protoflows-")] == []
