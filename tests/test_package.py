import ast
import importlib.resources
import importlib.util
import inspect
import os
import re
import socket
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protoflows
from protoflows.cli.main import main

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "lightning", "sklearn", "numpy", "matplotlib")


def python(code):
    """Run code in a fresh interpreter and return the finished process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def imported_heavy(code):
    code = f"import sys\n{code}\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    done = python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def test_version_is_the_distributions():
    assert re.fullmatch(r"\d+\.\d+\.\d+", protoflows.__version__)
    assert version("protoflows") == protoflows.__version__


def test_command_is_installed():
    (script,) = entry_points(group="console_scripts", name="protoflows")
    assert script.load() is main


def test_py_typed_is_shipped():
    assert importlib.resources.files("protoflows").joinpath("py.typed").is_file()


def test_import_is_light():
    assert imported_heavy("import protoflows") == []


def test_the_check_for_heavy_imports_can_fail():
    assert "numpy" in imported_heavy("import numpy")


def test_help_is_light():
    code = (
        "from protoflows.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
    )
    assert imported_heavy(code) == []


def test_a_commands_help_is_light():
    code = (
        "from protoflows.cli.main import COMMANDS, main\n"
        "for command in COMMANDS:\n"
        "    try: main([command, '--help'])\n"
        "    except SystemExit as stop: assert stop.code == 0, command\n"
    )
    assert imported_heavy(code) == []


def test_every_name_is_listed():
    lazy = set(protoflows._LAZY)
    assert set(protoflows.__all__) == lazy | {"__version__"}
    assert lazy <= set(dir(protoflows))


PRESENT = [name for name, module in protoflows._LAZY.items() if importlib.util.find_spec(module)]


def test_flows_is_present():
    assert "flows" in PRESENT


@pytest.mark.parametrize("name", PRESENT)
def test_name_resolves_in_a_fresh_interpreter(name):
    done = python(
        f"import protoflows as pf\nprint(pf.{name}.__name__)\nassert pf.{name} is pf.{name}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {name, protoflows._LAZY[name]}


def test_type_checkers_know_every_name_that_is_present():
    tree = ast.parse(inspect.getsource(protoflows))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imported = {alias.name for statement in block.body for alias in statement.names}
    assert imported == set(PRESENT)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'protoflows' has no attribute 'flwos'"):
        protoflows.flwos  # noqa: B018
    assert not hasattr(protoflows, "nothing_of_that_name")


LAZY_PACKAGES = ["data", "flows", "model", "prototypes", "training"]


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_lazy_packages_say_the_same_to_all(name):
    """What type checkers read, what `import *` takes and what is imported on use are one list."""
    package = importlib.import_module(f"protoflows.{name}")
    tree = ast.parse(inspect.getsource(package))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    declared = {alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(declared) == sorted(package.__all__)
    for public, module in declared.items():
        assert getattr(package, public) is getattr(importlib.import_module(module), public)
    assert not hasattr(package, "nothing_of_that_name")


def test_a_lazy_packages_configuration_is_light():
    code = "from protoflows.training import TrainConfig\nTrainConfig()"
    assert imported_heavy(code) == []


def test_members_can_be_listed():
    assert "__version__" in dict(inspect.getmembers(protoflows))


def test_missing_dependency_keeps_its_own_message(monkeypatch):
    def broken(target):
        raise ModuleNotFoundError("No module named 'some_library'", name="some_library")

    monkeypatch.delattr(protoflows, "flows", raising=False)
    monkeypatch.setattr(protoflows.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="some_library"):
        protoflows.flows  # noqa: B018


def test_absent_module_is_an_absent_attribute(monkeypatch):
    monkeypatch.setitem(protoflows._LAZY, "ghost", "protoflows.ghost")
    assert not hasattr(protoflows, "ghost")


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 0), (["--help"], 0), (["--version"], 0), (["--wrong"], 2)]
)
def test_exit_codes(arguments, code):
    command = [sys.executable, "-m", "protoflows", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 0:
        assert "protoflows" in done.stdout
        assert done.stderr == ""
    else:
        assert "--wrong" in done.stderr


def test_version_option(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"protoflows {protoflows.__version__}\n"


def test_tests_cannot_reach_the_network():
    # 192.0.2.0/24 is reserved for documentation: nobody is there, should the guard be broken.
    with socket.socket() as probe:
        probe.settimeout(0.1)
        with pytest.raises(RuntimeError, match="tests never download"):
            probe.connect(("192.0.2.1", 80))


def test_tests_can_use_local_sockets():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        assert client.getpeername() == server.getsockname()


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Wheel and sdist as `python -m build` makes them, but with what is installed here."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling", reason="building without the network needs hatchling")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_all_that_the_package_needs(distributions):
    with zipfile.ZipFile(distributions[0]) as wheel:
        held = set(wheel.namelist())
    source = ROOT / "src"
    needed = {
        file.relative_to(source).as_posix()
        for file in (source / "protoflows").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    for kind in ("recipes/compact.yaml", "paper_tables.csv", "app/web/style.css", "py.typed"):
        assert any(name.endswith(kind) for name in needed), kind
    assert any(name.endswith("models/digits/model.safetensors") for name in needed)
    # What somebody is writing beside this test may have come after the wheel.
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    known = {name.removeprefix("src/") for name in tracked} or needed
    assert needed & known <= held
    assert not [name for name in held if name.startswith(("tests", "docs", "benchmarks"))]


def test_the_sdist_can_be_tested(distributions):
    with tarfile.open(distributions[1]) as sdist:
        held = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"Makefile", "README.md", "CONTRIBUTING.md", "LICENSE", "NOTICE"} <= held
    assert {"tests/conftest.py", "docs/index.md", "docs/conf.py", "pyproject.toml"} <= held
    assert not [name for name in held if name.startswith("docs/_build") or "__pycache__" in name]


@pytest.mark.slow
def test_an_installed_wheel_explains_a_picture(distributions, tmp_path):
    home, place = tmp_path / "site", tmp_path / "work"
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(home)]
    subprocess.run([sys.executable, "-m", "pip", *words, str(distributions[0])], check=True)
    place.mkdir()
    ramp = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
    Image.fromarray(ramp).save(place / "some.png")

    def run(*words):
        # PYTHONPATH goes before this environment, whose protoflows is the source.
        return subprocess.run(
            [sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=600,
            env={**os.environ, "PYTHONPATH": str(home)},
        )  # fmt: skip

    where = run("-c", "import protoflows; print(protoflows.__file__)").stdout
    assert where.startswith(str(home))
    said = run("-m", "protoflows", "--version")
    assert said.stdout == f"protoflows {protoflows.__version__}\n"
    done = run("-m", "protoflows", "explain", "digits", "some.png", "--out", "why/")
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (place / "why").iterdir()} == {
        "why.html",
        "why.json",
        "why.png",
    }
