"""Where the options of `helios serve` come from: the command line, else HELIOS_SERVE_* variables,
else the file of --config (YAML or TOML), else their defaults."""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from helios_dod.errors import UserError

PREFIX = "HELIOS_SERVE_"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class Sections:
    """Adds options to a parser in titled groups. bare: options that are not given leave no value
    behind, so that other sources can be asked; the help still names the default."""

    def __init__(self, parser: argparse.ArgumentParser, bare: bool) -> None:
        self.parser, self.bare = parser, bare
        self.group: Any = parser

    def title(self, text: str) -> None:
        """Begins a group."""
        self.group = self.parser.add_argument_group(text)

    def add(self, name: str, **fields: Any) -> None:
        """An option, as argparse's add_argument takes it."""
        if self.bare and name.startswith("-"):
            default = fields.get("default")
            fields["help"] = fields["help"].replace("%(default)s", str(default))
            fields["default"] = argparse.SUPPRESS
        self.group.add_argument(name, **fields)


def read_file(path: Path) -> dict[str, Any]:
    """The mapping that a configuration file holds. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: cannot read {path}: {error}") from None
    try:
        if path.suffix == ".toml":
            found: Any = tomllib.loads(text)
        else:
            import yaml

            found = yaml.safe_load(text) or {}
    except Exception as error:  # yaml's and tomllib's own errors say where
        raise UserError(f"--config: {path}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise UserError(f"--config: {path}: expected option names and values, "
                        f"got {type(found).__name__}")
    if "config" in found:
        raise UserError(f"--config: {path}: config: a file cannot name another file")
    return found


def plain_value(value: Any, action: argparse.Action) -> Any:
    """The value as the command line would have it. on and off are truth values to YAML."""
    word = {True: "on", False: "off"}[value] if isinstance(value, bool) else None
    return word if word in (action.choices or ()) else value


def word_of(key: str, value: Any, action: argparse.Action, source: str) -> list[str]:
    """The command-line word of one value; none for a flag that is not set. Raises UserError."""
    if not action.option_strings:
        return [str(value)]
    if action.nargs != 0:
        return [f"{action.option_strings[0]}={value}"]
    truth = str(value).lower()
    if truth not in TRUE + FALSE:
        raise UserError(f"{source}: {key}: expected true or false, got {value!r}")
    return [action.option_strings[0]] if truth in TRUE else []


def words_of(values: Mapping[str, Any], actions: Mapping[str, argparse.Action],
             source: str) -> list[str]:
    """Command-line words of options by name, with - or _. Raises UserError naming the source."""
    words, positional, spelled = list[str](), list[str](), dict[str, str]()
    for key, value in values.items():
        dest = str(key).replace("-", "_")
        action = actions.get(dest)
        if action is None:
            raise UserError(f"{source}: unknown option {key!r}")
        if dest in spelled:
            raise UserError(f"{source}: {key}: the same option as {spelled[dest]}, given twice")
        spelled[dest] = key
        if value is None:
            continue
        many = isinstance(value, list) and isinstance(action, argparse._AppendAction)
        for each in value if many else [value]:
            if isinstance(each, dict | list):
                raise UserError(f"{source}: {key}: expected one plain value, got {each!r}")
            (words if action.option_strings else positional).extend(
                word_of(key, plain_value(each, action), action, source))
    return [*words, *positional]


def settle(args: argparse.Namespace, declare: Callable[[Sections], None],
           environment: Mapping[str, str]) -> argparse.Namespace:
    """All options, and as `given` the names of those that some source gives. args: what the command
    line gives. Raises UserError."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    declare(Sections(parser, bare=False))
    actions = {action.dest: action for action in parser._actions}
    variables = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items()
                 if name.startswith(PREFIX)}
    config = getattr(args, "config", None) or variables.pop("config", None)
    values, given_names = parser.parse_args([]), set[str]()
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if config is not None:
        sources.append((str(config), read_file(Path(config))))
    sources.append(("environment", variables))
    for source, given in sources:
        try:
            found = parser.parse_args(words_of(given, actions, source))
        except (argparse.ArgumentError, SystemExit) as error:
            raise UserError(f"{source}: {error}") from None
        for key, value in given.items():
            dest = str(key).replace("-", "_")
            setattr(values, dest, getattr(found, dest))
            if value is not None:
                given_names.add(dest)
    for dest, value in vars(args).items():
        if value is not None:  # a positional that is not given
            setattr(values, dest, value)
            given_names.add(dest)
    values.given = frozenset(given_names)
    return values


def api_keys(values: argparse.Namespace) -> list[str]:
    """Keys of --api-key and --api-key-file (one a line, # begins a comment). Raises UserError."""
    keys = list(values.api_key or ())
    if values.api_key_file is not None:
        try:
            lines = values.api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--api-key-file: {error}") from None
        keys += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise UserError(f"--api-key-file: {values.api_key_file} holds no key")
    if any(not key.strip() or not key.isascii() for key in keys):
        raise UserError("--api-key: must be ASCII and not empty")
    return keys


