"""Options of `helios serve` from the command line, variables and files."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from helios_dod.errors import UserError
from helios_dod.server.launch import LaunchError, reserve_port, reserve_socket
from helios_dod.server.serve_command import add_arguments, declare, serve_options
from helios_dod.server.settings import settle


def options(*words: str, **variables: str) -> Any:
    """The options of a command line; variables are HELIOS_SERVE_ ones."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    environment = {f"HELIOS_SERVE_{name.upper()}": value for name, value in variables.items()}
    return settle(parser.parse_args(list(words)), declare, environment)


@pytest.mark.parametrize(("name", "text"), [
    ("a.yaml", "port: 1\nmax-active: 3\ntrust_weights: true\ncors-origin: [a, b]\nhost: null\n"),
    ("a.toml", 'port = 1\nmax-active = 3\ntrust_weights = true\ncors-origin = ["a", "b"]\n'),
])
def test_order_of_sources(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    plain = options()
    assert (plain.port, plain.max_active, plain.trust_weights, plain.cors_origin) == (
        8000, 0, False, None)
    filed = options("--config", str(path))
    assert (filed.port, filed.max_active, filed.trust_weights) == (1, 3, True)
    assert filed.cors_origin == ["a", "b"] and filed.host == "127.0.0.1"
    both = options("--config", str(path), port="2", workers="4")
    assert (both.port, both.workers, both.max_active) == (2, 4, 3)
    all_three = options("--config", str(path), "--port", "8000", "core", port="2")
    assert all_three.port == 8000 and all_three.core == Path("core")
    assert options().core is None and options(core="other").core == Path("other")
    assert options(config=str(path)).max_active == 3
    assert options(trust_weights="off").trust_weights is False


@pytest.mark.parametrize(("text", "words"), [
    ("prot: 1", ("prot", "unknown")), ("port: x", ("port", "x")), ("- a", ("list",)),
    ("port: [", ("a.yaml",)), ("trust-weights: maybe", ("trust-weights", "maybe")),
    ("port: {a: 1}", ("port",)), ("limits: VAST", ("limits", "VAST")),
    ("port: [1, 2]", ("port", "one plain value", "[1, 2]")), ("core: [a]", ("core", "['a']")),
    ("core: {a: 1}", ("core",)), ("log: [text]", ("log", "['text']")), ("log: on", ("log", "True")),
    ("no-ui: [true]", ("no-ui",)), ("cors-origin: [[a]]", ("cors-origin", "['a']")),
    ("config: b.yaml", ("config: a file cannot name another",)), ("port: off", ("port", "False")),
    ("max-active: 1\nmax_active: 2", ("max_active: the same option as max-active",)),
])
def test_wrong_files(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        options("--config", str(path))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["a.yaml", "a.toml"])
def test_off_is_a_word_where_it_is_a_choice(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("log: off\nno-ui: on" if name == "a.yaml" else "log = false\nno-ui = true")
    filed = options("--config", str(path), "--max-active=1")
    assert (filed.log, filed.no_ui) == ("off", True)
    assert options(log="off").log == "off"
    path.write_text("log: 'off'" if name == "a.yaml" else 'log = "off"')
    assert options("--config", str(path)).log == "off"


def test_wrong_variables_and_missing_files(tmp_path: Path) -> None:
    for variables in ({"prot": "1"}, {"port": "x"}):
        with pytest.raises(UserError, match="environment"):
            options(**variables)
    with pytest.raises(UserError, match="cannot read"):
        options("--config", str(tmp_path / "none.yaml"))


def test_keys_and_files(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\none\n\ntwo\n")
    made = serve_options(options("--api-key-file", str(keys), "--api-key", "three"))
    assert len(set(made.key_digests)) == 3 and b"one" not in made.key_digests
    keys.write_text("# none\n")
    for words, name in ((("--api-key-file", str(keys)), "--api-key-file"),
                        (("--api-key", " "), "--api-key"),
                        (("--tls-cert", str(keys)), "--tls-key"),
                        (("--tls-cert", str(keys), "--tls-key", str(keys)), "--tls-cert"),
                        (("--frontend-workers", "1", "--workers", "2"), "--frontend-workers"),
                        (("--max-body-bytes", "2G"), "--max-body-bytes"),
                        (("--restart-engine", "-1"), "--restart-engine")):
        with pytest.raises(UserError, match=name):
            serve_options(options(*words))


def test_help_names_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.print_help()
    text = capsys.readouterr().out
    assert "SUPPRESS" not in text and "%(default)" not in text and "(default 8000)" in text
    for title in ("listening", "admission", "model", "engine", "operation"):
        assert f"{title}:" in text


@pytest.mark.parametrize("name", ["max-active", "queue-capacity", "frontend-workers", "context",
                                  "threads", "speculative-width", "record-ticks", "workers",
                                  "cache-memory"])
def test_none_is_not_the_default(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that is left out is chosen; one that asks for nothing is a mistake."""
    for value in ("0", "-1", "x"):
        with pytest.raises(SystemExit):
            options(f"--{name}={value}")
        assert f"argument --{name}: expected" in capsys.readouterr().err
        with pytest.raises(UserError, match=f"environment: argument --{name}: expected"):
            options(**{name.replace("-", "_"): value})
    assert options(f"--{name}=1")


@pytest.mark.parametrize(("name", "value", "problem"), [
    ("host", "", "must not be empty"), ("model-name", "", "must not be empty"),
    ("drain-seconds", "99999999999", "between 0 and 86400"), ("drain-seconds", "-1", "between 0"),
    ("threads", "99999999999", "between 0 and 1024"), ("restart-engine", "-1", "between 0"),
    ("offload-memory", "9999999T", "between 0"),
])
def test_values_that_no_server_has(name: str, value: str, problem: str) -> None:
    with pytest.raises(UserError, match=f"--{name}: .*{problem}"):
        serve_options(options(f"--{name}={value}"))


@pytest.mark.parametrize(("words", "problem"), [
    (("--uds=a", "--port=8000"), "--port: cannot be combined with --uds"),
    (("--uds=a", "--host=::1"), "--host: cannot be combined with --uds"),
    (("--step-ms=8",), "--step-ms: goes with --executor simulated"),
    (("--token-us=1",), "--token-us: goes with --executor simulated"),
    (("--pace=real",), "--pace: goes with --executor simulated"),
    (("--record-ticks=5",), "--record-ticks: goes with --record"),
    (("--executor=simulated", "--random-weights"),
     "--random-weights: cannot be combined with --executor simulated"),
    (("--executor=simulated", "--speculative-width=2"),
     "--speculative-width: cannot be combined with --executor simulated"),
    (("--executor=simulated", "--history-drafting"),
     "--history-drafting: cannot be combined with --executor simulated"),
])
def test_options_without_effect_are_refused(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        serve_options(options(*words))
    name, _, value = words[-1].removeprefix("--").partition("=")
    with pytest.raises(UserError, match=problem):
        serve_options(options(*words[:-1], **{name.replace("-", "_"): value}))


def test_options_with_effect_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("port: null\nstep-ms: null\n")
    for words in (("--uds=a",), ("--uds=a", "--config", str(path)), ("--port=1", "--host=::1"),
                  ("--record=a", "--record-ticks=5"),
                  ("--executor=simulated", "--step-ms=8", "--token-us=1", "--pace=real")):
        assert serve_options(options(*words))


def test_places_that_no_server_listens_on(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("\udcff", "a" * 64 + ".example", "a..b"):
        with pytest.raises(LaunchError, match=r"--host: not the name|cannot listen"):
            reserve_port(host, 0)
    with pytest.raises(LaunchError, match="--uds: a path of at most 107 bytes expected, got 300"):
        reserve_socket(Path("/" + "x" * 299))
    for name in ("uds", "record", "offload-disk", "api-key-file", "config", "tls-cert"):
        with pytest.raises(SystemExit):
            options(f"--{name}=")
        assert f"argument --{name}: expected a path" in capsys.readouterr().err
