"""Shell completion says what the parsers say; bash really completes with it."""

import shutil
import subprocess

import pytest

from protoflows.cli.completion import SHELLS, bash_script, describe_commands, fish_script, main
from protoflows.cli.main import COMMANDS
from protoflows.data import DATASETS
from protoflows.data.registry import _LOADERS
from protoflows.training import recipe_names

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "protoflows.bash"
    path.write_text(bash_script(describe_commands()))
    return path


def complete(script, *words, folder="/"):
    """What bash offers after these words."""
    listed = " ".join(f"'{word}'" for word in ("protoflows", *words))
    code = (
        f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _protoflows; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [BASH, "-c", code], capture_output=True, text=True, timeout=30, cwd=folder, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_every_command_is_there():
    assert [command.name for command in describe_commands()] == list(COMMANDS)


def test_names_of_data_sets_are_those_that_load():
    assert list(DATASETS) == ["digits", *_LOADERS]


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_completes(script, tmp_path):
    assert complete(script, "expl") == ["explain"]
    assert complete(script, "") == list(COMMANDS)
    assert complete(script, "--deb", folder=tmp_path) == ["--debug"]
    assert complete(script, "explain", "--pat") == ["--patch"]
    assert complete(script, "explain", "--by", "") == ["latent", "image"]
    assert complete(script, "--debug", "explain", "--str") == ["--stride"]
    assert complete(script, "train", "--recipe", "paper-c") == [
        name for name in recipe_names() if name.startswith("paper-c")
    ]
    assert complete(script, "train", "--optim.sched") == ["--optim.schedule"]
    assert complete(script, "train", "--optim.schedule", "c") == ["cosine", "constant"]
    assert complete(script, "train", "cif", folder=tmp_path) == ["cifar10", "cifar100"]
    assert complete(script, "completion", "") == [*SHELLS]


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_offers_files_beside_names(script, tmp_path):
    (tmp_path / "cifar-pictures").mkdir()
    found = complete(script, "train", "cif", folder=tmp_path)
    assert found == ["cifar10", "cifar100", "cifar-pictures"]
    # Nothing of our own: bash's default, file names, takes over.
    assert complete(script, "train", "--out", "", folder=tmp_path) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_name_every_command_and_option(shell, capsys):
    assert main([shell]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") > 50
    for command in describe_commands():
        assert command.name in text
        for option in command.options:
            assert option.names[-1].lstrip("-") in text


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_well_formed(shell, tmp_path, capsys):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    main([shell])
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    done = subprocess.run([program, "-n", path], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_fish_quotes_what_it_says():
    for line in fish_script(describe_commands()).splitlines()[1:]:
        unescaped = line.replace("\\'", "")
        assert unescaped.count("'") % 2 == 0, line


def test_an_unknown_shell_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["powershell"])
    assert stop.value.code == 2
    assert "powershell" in capsys.readouterr().err
