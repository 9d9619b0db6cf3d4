"""What README and docs tell a reader to type works as it stands.

Python blocks of a page run in order in one namespace, in an empty folder, with the model that ships
and scikit-learn's digits. A block that cannot run (it needs a GPU or other data) says so and why in
a comment before it: <!-- not run: needs CIFAR-10 -->. Every command of a shell block is parsed by
the command's own parser; those of a block after <!-- run --> run as well.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

from protoflows.cli.main import COMMANDS, build_parser, main
from protoflows.cli.options import parse, settings, training_parser
from protoflows.training import TrainConfig, from_dict, merge, read_recipe
from tests.docs.examples import (
    NOT_RUN,
    ROOT,
    RUN,
    Block,
    blocks,
    commands,
    pages,
    program_words,
)

PAGES = [page for page in pages() if blocks(page)]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
LANGUAGES = {"python", "sh", "text", "yaml", "{toctree}", "{eval-rst}"}
# Pages that are kept beside those of the site and follow their own ways.
FREE = {"README.md", "docs/architecture.md", "docs/flow.md"}


def of_language(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def to_run(page: Path) -> list[Block]:
    return [
        block
        for block in blocks(page)
        if (block.language == "python" and not block.reason)
        or (block.language == "sh" and block.mark == RUN)
    ]


RUNNABLE = [page for page in PAGES if to_run(page)]


def test_the_readme_and_the_first_page_have_examples_that_run():
    assert {"README.md", "quickstart.md"} <= {page.name for page in RUNNABLE}


@pytest.mark.parametrize("page", RUNNABLE, ids=[page.name for page in RUNNABLE])
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    runnable = to_run(page)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    for block in runnable:
        if block.language == "python":
            # Blank lines before it, so that a traceback names the line of the page.
            exec(compile("\n" * block.line + block.code, block.page, "exec"), namespace)
            continue
        for words in commands(block):
            argv = program_words(words)
            assert argv is not None, f"{block.name}: only protoflows' own commands can be run"
            assert main(argv) == 0, f"{block.name}: {shlex.join(words)}\n{capsys.readouterr().err}"


def test_the_quickstart_leaves_what_it_promises(tmp_path, monkeypatch, capsys):
    """What is shown there is what the command prints, but for figures that machines differ in."""
    (page,) = [page for page in PAGES if page.name == "quickstart.md"]
    found = blocks(page)
    save, shown = (next(b for b in found if b.language == kind) for kind in ("python", "text"))
    explain = next(b for b in found if b.mark == RUN)
    monkeypatch.chdir(tmp_path)
    exec(save.code, {})
    (words,) = commands(explain)
    assert main(program_words(words)) == 0
    said = capsys.readouterr().out
    words_alone = re.compile(r"-?\d+(\.\d+)?")
    assert words_alone.sub("#", said).split() == words_alone.sub("#", shown.code).split()
    assert (tmp_path / "why" / "why.html").is_file()


@pytest.mark.parametrize("block", of_language("sh"), ids=lambda block: block.name)
def test_commands_parse(block):
    assert commands(block), block.name
    for words in commands(block):
        argv = program_words(words)
        if argv is None:
            check_other_program(words, block)
            continue
        if argv[0].startswith("-"):
            with contextlib.suppress(SystemExit):
                build_parser().parse_args(argv)
            continue
        assert argv[0] in COMMANDS, f"{block.name}: there is no command {argv[0]!r}"
        try:
            check_command(argv[0], argv[1:])
        except SystemExit as stop:
            pytest.fail(f"{block.name}: {shlex.join(words)} is refused ({stop.code})")


def check_command(name: str, argv: list[str]) -> None:
    if name not in ("train", "pretrain"):
        importlib.import_module(COMMANDS[name][0]).build_parser().parse_args(argv)
        return
    given = parse(training_parser(name, ""), argv)
    file = given.pop("config", None)
    if "resume" not in given:
        settings(given)
    assert file is None or file.endswith(".yaml")


def check_other_program(words: list[str], block: Block) -> None:
    name = words[0]
    assert name in {"make", "git", "cd", "pip", "python", "source"}, (
        f"{block.name}: what is {name}?"
    )
    if name == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for target in words[1:]:
            assert target in targets, f"{block.name}: the Makefile has no {target}"
    if name == "python":
        assert (ROOT / words[1]).is_file(), f"{block.name}: there is no {words[1]}"


@pytest.mark.parametrize("block", of_language("yaml"), ids=lambda block: block.name)
def test_settings_are_known(block):
    given = yaml.safe_load(block.code)
    recipe = read_recipe(given.pop("recipe", "compact"))
    assert isinstance(from_dict(TrainConfig, merge(recipe, given)), TrainConfig)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_says_what_it_is(page):
    for block in blocks(page):
        if block.mark.startswith(NOT_RUN.strip()):
            assert len(block.reason.split()) >= 2, f"{block.name}: say why it is not run"
        if block.page not in FREE:
            assert block.language in LANGUAGES, f"{block.name}: {block.language!r}"


def test_few_examples_are_not_run():
    assert len([block for block in of_language("python") if block.reason]) <= 3
    assert len([block for block in of_language("python") if not block.reason]) >= 8


def test_names_of_functions_are_real():
    """`{py:obj}` roles and dotted names of the package between backquotes."""
    found = set()
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        found |= set(re.findall(r"`(protoflows(?:\.\w+)+)`", text))
    assert len(found) > 20
    for name in found:
        resolve(name)


def resolve(name: str) -> object:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(f"{name} names nothing")


def test_every_equation_of_the_paper_that_the_code_names_is_in_the_docs():
    label = re.compile(r"eq:\w+")
    in_code = {
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in label.findall(file.read_text(encoding="utf-8"))
    }
    in_docs = set(label.findall((ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")))
    # eq:line2 stands between eq:line1 and eq:line3.
    assert in_code - in_docs <= {"eq:line2"}
    assert "eq:hell" in in_code & in_docs


def test_pictures_and_local_links_exist():
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert picture.stat().st_size < 150_000, picture.name


def test_examples_are_found_where_they_are(tmp_path, monkeypatch):
    text = (
        "<!-- not run: needs a GPU -->\n```python\nx\n```\n\n"
        "```sh\na && b \\\n  -m protoflows c # d\n```\n"
    )
    file = tmp_path / "page.md"
    file.write_text(text)
    monkeypatch.setattr("tests.docs.examples.ROOT", tmp_path)
    python, shell = blocks(file)
    assert (python.reason, python.code, python.line) == ("needs a GPU", "x\n", 2)
    assert (shell.reason, shell.mark, shell.line) == ("", "", 6)
    assert commands(shell) == [["a"], ["b", "-m", "protoflows", "c"]]
    assert program_words(commands(shell)[1]) == ["c"]
    assert program_words(["git", "clone"]) is None
