"""`protoflows completion`: scripts that complete commands, options and their values in a shell.

All is read off the parsers, so that the scripts cannot fall behind the options.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protoflows.cli.parser import CommandParser

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Option:
    """An option of a command, as a shell needs to know it.

    Attributes:
        names: Its spellings, `--out`.
        words: Values to offer.
        takes_value: Whether a value follows it.
        help: The first sentence of its help.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    takes_value: bool
    help: str


@dataclass(frozen=True)
class Command:
    """A command, as a shell needs to know it.

    Attributes:
        name: Its name.
        about: Its line in the list of commands.
        options: Its options.
        words: What to offer in place of arguments.
        files: Whether file names do there, too.
    """

    name: str
    about: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    files: bool


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows completion",
        description="Write a script that completes commands, options and their values.",
        examples=(
            ("bash; then `source ~/.protoflows.sh` in ~/.bashrc",
             "completion bash > ~/.protoflows.sh"),
            ("zsh; then `source ~/.protoflows.zsh` in ~/.zshrc",
             "completion zsh > ~/.protoflows.zsh"),
            ("fish", "completion fish > ~/.config/fish/completions/protoflows.fish"),
        ),
    )  # fmt: skip
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `completion`.
    """
    arguments = build_parser().parse_args(list(argv))
    commands = describe_commands()
    make = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[arguments.shell]
    print(make(commands), end="")
    return 0


def describe_commands() -> list[Command]:
    """All commands with their options, from their parsers."""
    from protoflows.cli.main import COMMANDS

    found = []
    for name, (module, about) in COMMANDS.items():
        parser: argparse.ArgumentParser = importlib.import_module(module).build_parser()
        options, words, files = [], [], False
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            if action.option_strings:
                takes = action.nargs != 0
                options.append(
                    Option(
                        tuple(action.option_strings),
                        tuple(values_of(action)) if takes else (),
                        takes,
                        _first_sentence(action.help or ""),
                    )
                )
            else:
                words += values_of(action)
                files = files or action.choices is None
        found.append(Command(name, about, tuple(options), tuple(words), files))
    return found


def values_of(action: argparse.Action) -> list[str]:
    """Values that an argument is likely to take; file names are offered as well."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest == "recipe":
        from protoflows.training.recipes import recipe_names

        return recipe_names()
    if action.metavar == "DATA" or action.dest == "data.name":
        from protoflows.data.config import DATASETS

        return list(DATASETS)
    if action.metavar == "RUN" and not action.option_strings:
        from protoflows.model.shipped import shipped_models

        return list(shipped_models())
    # Options that jsonargparse makes from a type say what they take in their own metavar.
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar.startswith("{") and metavar.endswith("}"):
        return [word for word in metavar[1:-1].split(",") if word != "null"]
    return []


def bash_script(commands: Iterable[Command]) -> str:
    """Completion for bash: a function of its own, no package needed."""
    commands = list(commands)
    cases = []
    for command in commands:
        options = " ".join(name for option in command.options for name in option.names)
        values = [
            f'{"|".join(option.names)}) words="{" ".join(option.words)}"; value=1 ;;'
            for option in command.options
            if option.takes_value
        ]
        cases.append(
            f"    {command.name})\n"
            f'      case "$previous" in\n'
            + "".join(f"        {line}\n" for line in values)
            + f'        *) options="{options}"; words="{" ".join(command.words)}"'
            f"{'; files=1' * command.files} ;;\n"
            "      esac ;;\n"
        )
    names = " ".join(command.name for command in commands)
    return (
        "# Completion of protoflows for bash, written by `protoflows completion bash`.\n"
        "_protoflows() {\n"
        '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"\n'
        '  local command="" options="" words="" value="" files="" word\n'
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do\n'
        '    case "$word" in -*) ;; *) command="$word"; break ;; esac\n'
        "  done\n"
        "  COMPREPLY=()\n"
        '  case "$command" in\n'
        f'    "") options="--help --version --debug"; words="{names}" ;;\n'
        + "".join(cases)
        + "  esac\n"
        '  if [[ "$current" == -* && -z "$value" ]]; then\n'
        '    COMPREPLY=($(compgen -W "$options" -- "$current"))\n'
        "  else\n"
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))\n'
        "    # An empty answer lets bash offer file names, as it would have without us.\n"
        '    if [[ -n "$files" && ${#COMPREPLY[@]} -gt 0 ]]; then\n'
        '      while IFS= read -r word; do COMPREPLY+=("$word"); done'
        ' < <(compgen -f -- "$current")\n'
        "    fi\n"
        "  fi\n"
        "}\n"
        "complete -o bashdefault -o default -F _protoflows protoflows\n"
    )


def zsh_script(commands: Iterable[Command]) -> str:
    """Completion for zsh, which runs bash's function."""
    return (
        "# Completion of protoflows for zsh, written by `protoflows completion zsh`.\n"
        "autoload -U +X compinit && compinit -u\n"
        "autoload -U +X bashcompinit && bashcompinit\n" + bash_script(commands)
    )


def fish_script(commands: Iterable[Command]) -> str:
    """Completion for fish, with a line of help for everything."""
    commands = list(commands)
    lines = [
        "# Completion of protoflows for fish, written by `protoflows completion fish`.",
        "complete -c protoflows -e",
        "complete -c protoflows -n __fish_use_subcommand -l help -s h -d 'show help'",
        "complete -c protoflows -n __fish_use_subcommand -l version -d 'show the version'",
        "complete -c protoflows -n __fish_use_subcommand -l debug -d 'show tracebacks'",
    ]
    for command in commands:
        lines.append(
            f"complete -c protoflows -n __fish_use_subcommand -f -a {command.name} "
            f"-d {_quoted(command.about)}"
        )
    for command in commands:
        begin = f"complete -c protoflows -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{begin} -a {_quoted(' '.join(command.words))}")
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            values = f" -a {_quoted(' '.join(option.words))}" if option.words else ""
            needs = " -r" if option.takes_value else ""
            lines.append(f"{begin} {names}{needs}{values} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0].rstrip(".").replace("%%", "%")


def _quoted(text: str) -> str:
    """In single quotes, as fish reads them."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
