import argparse
import copyreg
import operator
import os
import pathlib
import pickle
import subprocess
from collections import OrderedDict

import pytest
import torch

from protoflows.flows.safe_pickle import UnsafePickleError, load_namespace, load_torch

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Call:
    """Pickles as a call of `function(*arguments)`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def attacks(marker):
    """Payloads that create the file `marker` where they are allowed to run."""
    touch = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return {
        "posix.system": Call(os.system, f"touch '{marker}'"),
        "builtins.eval": Call(eval, touch),
        "builtins.exec": Call(exec, touch),
        "io.open": Call(open, str(marker), "w"),
        "subprocess.check_output": Call(subprocess.check_output, ["touch", str(marker)]),
        "operator.methodcaller": Call(operator.methodcaller("touch"), pathlib.Path(marker)),
    }


ATTACKS = sorted(attacks(pathlib.Path("marker")))


def wrapped(payload):
    return {
        "alone": payload,
        "in a namespace": argparse.Namespace(block_conf=[6, 4, 1], model=payload),
        "deep inside": {"a": [({"b": (1, payload)},)]},
        "as the last item": ["harmless", 1, payload],
    }


PLACES = sorted(wrapped(None))


def short(text):
    """The instruction that pushes a short string."""
    raw = text.encode()
    return pickle.SHORT_BINUNICODE + bytes([len(raw)]) + raw


def named(module, name):
    """The instructions that push the global `module.name` (protocol 4: dots are followed)."""
    return short(module) + short(name) + pickle.STACK_GLOBAL


def program(*instructions):
    return pickle.PROTO + b"\x04" + b"".join(instructions) + pickle.STOP


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "args.pickle"
        path.write_bytes(content)
        return path

    return write


# ---- load_namespace: what it reads -------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_reads_plain_arguments(file, protocol):
    entries = {
        "block_conf": [6, 4, 1],
        "layers_conf": (5, 6, 20),
        "growth_rate": 10,
        "lr": 2e-4,
        "phase": 1 + 2j,
        "name": "größe",
        "gmms": None,
        "use_ema": True,
        "tags": {"a", "b"},
        "fixed": frozenset({1}),
        "order": OrderedDict(x=1),
        "kinds": [int, str, float],
    }
    path = file(pickle.dumps(argparse.Namespace(**entries), protocol=protocol))
    assert load_namespace(path) == entries
    assert load_namespace(str(path)) == entries


def test_reads_a_dict_and_keeps_namespaces_inside(file):
    content = {"flow_args": argparse.Namespace(depth=7)}
    loaded = load_namespace(file(pickle.dumps(content)))
    assert isinstance(loaded["flow_args"], argparse.Namespace)
    assert loaded["flow_args"].depth == 7
    assert loaded == content


# ---- load_namespace: what it refuses -----------------------------------------------------------


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attacks_work_where_nothing_stops_them(marker, name):
    pickle.loads(pickle.dumps(attacks(marker)[name]))
    assert marker.exists()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_are_refused_and_not_made(file, marker, name, place, protocol):
    payload = wrapped(attacks(marker)[name])[place]
    path = file(pickle.dumps(payload, protocol=protocol))
    with pytest.raises(UnsafePickleError) as caught:
        load_namespace(path)
    assert not marker.exists()
    assert str(path) in str(caught.value)
    assert "Nothing of it was run" in str(caught.value)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_refused_name_is_told(file, marker, name):
    path = file(pickle.dumps(attacks(marker)[name]))
    with pytest.raises(UnsafePickleError, match=rf"it names {name},"):
        load_namespace(path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("argparse", "_sys.modules"),
        ("argparse", "_os.system"),
        ("argparse", "Namespace.__init__.__globals__"),
        ("argparse", "Namespace.__class__"),
        ("builtins", "dict.__class__.__subclasses__"),
        ("builtins", "object"),
        ("builtins", "type"),
        ("builtins", "__import__"),
        ("builtins", "list.__init__"),
        ("collections", "_sys.modules"),
        ("collections", "OrderedDict.__reduce__"),
        ("argparse.Namespace", "__init__"),
        ("Argparse", "Namespace"),
        ("argparse", ""),
        ("copyreg", "_reconstructor"),
        ("functools", "partial"),
        ("torch", "load"),
    ],
)
def test_dotted_and_neighbouring_names_are_refused(file, module, name):
    with pytest.raises(UnsafePickleError) as caught:
        load_namespace(file(program(named(module, name))))
    assert f"it names {module}.{name}," in str(caught.value)


def test_a_dotted_name_does_reach_further_where_nothing_stops_it():
    assert pickle.loads(program(named("argparse", "_os.system"))) is os.system


@pytest.mark.parametrize(
    "content",
    [
        b"(S'touch {marker}'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch {marker}'\no.",  # OBJ
        b"cos\nsystem\n(S'touch {marker}'\ntR.",  # GLOBAL, REDUCE
    ],
)
def test_old_instructions_are_refused(file, marker, content):
    content = content.replace(b"{marker}", str(marker).encode())
    with pytest.raises(UnsafePickleError, match=r"it names os\.system,"):
        load_namespace(file(content))
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists()


def test_a_cached_extension_code_is_refused(file, marker):
    # Once it has been used, the interpreter answers this code without asking `find_class`.
    copyreg.add_extension("posix", "system", 251)
    try:
        content = pickle.dumps(Call(os.system, f"touch '{marker}'"))
        assert pickle.EXT1 + b"\xfb" in content
        pickle.loads(content)
        marker.unlink()
        with pytest.raises(UnsafePickleError, match="instruction EXT1"):
            load_namespace(file(content))
    finally:
        copyreg.remove_extension("posix", "system", 251)
        copyreg.clear_extension_cache()
    assert not marker.exists()


def test_persistent_ids_are_refused(file):
    with pytest.raises(UnsafePickleError, match="instruction BINPERSID"):
        load_namespace(file(program(pickle.NONE, pickle.BINPERSID)))


POISON = (
    named("argparse", "Namespace")
    + pickle.NONE
    + (pickle.EMPTY_DICT + short("__eq__") + named("builtins", "list") + pickle.SETITEM)
    + pickle.TUPLE2  # (None, {"__eq__": list}): the attributes to set on the class itself
    + pickle.BUILD
)


def test_classes_cannot_be_altered(file, monkeypatch):
    with monkeypatch.context() as patch:
        # Remembers today's method, and puts it back at the end.
        patch.setattr(argparse.Namespace, "__eq__", argparse.Namespace.__eq__)
        pickle.loads(program(POISON))
        assert argparse.Namespace.__eq__ is list
    with pytest.raises(ValueError, match="cannot set '__eq__'"):
        load_namespace(file(program(POISON)))
    assert argparse.Namespace(a=1) == argparse.Namespace(a=1)
    assert load_namespace(file(pickle.dumps(argparse.Namespace(a=1)))) == {"a": 1}


def test_a_long_file_is_refused_unread(file):
    content = pickle.dumps({"a": "x" * 1000})
    path = file(content)
    assert load_namespace(path, max_bytes=len(content)) == {"a": "x" * 1000}
    with pytest.raises(UnsafePickleError, match=rf"at most {len(content) - 1} bytes"):
        load_namespace(path, max_bytes=len(content) - 1)


# ---- load_namespace: damaged files -------------------------------------------------------------

GOOD = pickle.dumps(argparse.Namespace(block_conf=[6, 4, 1], name="flow"))


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_every_truncation_is_a_clear_error(file, length):
    with pytest.raises(ValueError, match="is not a readable pickle") as caught:
        load_namespace(file(GOOD[:length]))
    assert not isinstance(caught.value, UnsafePickleError)
    assert "args.pickle" in str(caught.value)


@pytest.mark.parametrize("content", [b"hello world\n", b"\x00" * 50, b"\x80\x09.", b"PK\x03\x04"])
def test_other_files_are_a_clear_error(file, content):
    with pytest.raises(ValueError, match="is not a readable pickle"):
        load_namespace(file(content))


@pytest.mark.parametrize("content", [[1, 2], None, {1: 2}, "text"])
def test_other_contents_are_a_clear_error(file, content):
    expected = rf"holds a {type(content).__name__}, expected an argparse.Namespace"
    with pytest.raises(ValueError, match=expected):
        load_namespace(file(pickle.dumps(content)))


@pytest.mark.parametrize("load", [load_namespace, load_torch])
def test_missing_file_and_folder(tmp_path, load):
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        load(tmp_path / "nothing_here")
    with pytest.raises(ValueError, match="is a folder, expected a file"):
        load(tmp_path)


# ---- load_torch --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    def save(content, zipped=True):
        path = tmp_path / "checkpoint.pt"
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        return path

    return save


@pytest.mark.parametrize("zipped", [True, False])
def test_reads_a_checkpoint(saved, zipped):
    before = set(torch.serialization.get_safe_globals())
    content = {
        "model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3)),
        "epoch": 3,
        "args": argparse.Namespace(block_conf=[6, 4, 1]),
    }
    loaded = load_torch(saved(content, zipped))
    assert torch.equal(loaded["model"]["weight"], content["model"]["weight"])
    assert loaded["model"]["weight"].device.type == "cpu"
    assert loaded["epoch"] == 3
    assert isinstance(loaded["args"], argparse.Namespace)
    assert loaded["args"] == content["args"]
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_calls_are_refused_and_not_made(saved, marker, name, place, zipped):
    path = saved({"model": {}, "extra": wrapped(attacks(marker)[name])[place]}, zipped)
    with pytest.raises(UnsafePickleError, match="it names ") as caught:
        load_torch(path)
    assert not marker.exists()
    assert str(path) in str(caught.value)
    # torch's own text advises to try again without protection: it must not reach the user.
    assert "weights_only" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_torch_attack_works_where_nothing_stops_it(saved, marker):
    path = saved({"model": attacks(marker)["builtins.eval"]})
    torch.load(path, weights_only=False)
    assert marker.exists()


def test_the_refused_torch_name_is_told(saved, marker):
    path = saved({"model": attacks(marker)["builtins.eval"]})
    with pytest.raises(UnsafePickleError, match=r"it names (builtins\.)?eval,"):
        load_torch(path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bare_pickle_is_refused(file, marker, protocol):
    path = file(pickle.dumps(attacks(marker)["posix.system"], protocol=protocol))
    with pytest.raises(ValueError, match="args.pickle"):
        load_torch(path)
    assert not marker.exists()


def test_torch_classes_cannot_be_altered(file):
    # The same in protocol 2, the one torch reads: GLOBAL in place of STACK_GLOBAL.
    namespace = pickle.GLOBAL + b"argparse\nNamespace\n"
    key = pickle.BINUNICODE + b"\x06\x00\x00\x00__eq__"
    attributes = pickle.EMPTY_DICT + key + namespace + pickle.SETITEM
    before = argparse.Namespace.__eq__
    content = b"".join([pickle.PROTO, b"\x02", namespace, pickle.NONE, attributes])
    content += pickle.TUPLE2 + pickle.BUILD + pickle.STOP
    with pytest.raises(ValueError, match="args.pickle"):
        load_torch(file(content))
    assert argparse.Namespace.__eq__ is before


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_torch_file_is_a_clear_error(saved, keep):
    path = saved({"model": torch.ones(100)})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match="is not a readable torch file"):
        load_torch(path)


def test_a_text_file_is_a_clear_error(file):
    with pytest.raises(ValueError, match="is not a readable torch file"):
        load_torch(file(b"hello world\n"))


@pytest.mark.parametrize("content", [torch.ones(2), [1, 2], 3])
def test_a_torch_file_without_a_mapping_is_a_clear_error(saved, content):
    with pytest.raises(ValueError, match=rf"holds a {type(content).__name__}, expected a mapping"):
        load_torch(saved(content))
