"""The house rules that a machine can check: names, layers, lengths, and what serving imports."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from helios_dod import terms
from helios_dod.contract.wire import contract_pb2, manifest_pb2

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "helios_dod"
WIRE = PACKAGE / "contract" / "wire"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if WIRE not in path.parents)
OTHERS = sorted(
    path for folder in ("tests", "perf", "proto")
    for path in (ROOT / folder).rglob("*.py"))
BUILD_FILES = (ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run")
LINE_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 450

MODEL_NAMES = re.compile(
    r"(?i)(?<![a-z])(llama|qwen|smollm|mistral|mixtral|gpt-?2|gpt-?oss|deepseek|gemma|glm|kimi"
    r"|phi-?[34]|falcon|olmo|granite)")
MODEL_NAMES_ALLOWED = (
    "ignition/recipes/", "ignition/checkpoints/",
    "frontend/output/case_names.py")  # a public file format names syntaxes after models

JIT_NAMES = {"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil", "jitclass", "prange",
             "generated_jit", "jit_module"}
HEAVY = ("torch", "triton", "gguf", "transformers", "safetensors", "sentencepiece", "tqdm",
         "helios_dod.ignition")

# Folder or module -> what of this package it may import. The rest is not for it.
BASE = ("limits", "schema", "terms", "system", "words", "decoding", "folders", "errors",
        "compiling", "bounds")
MAY_IMPORT = {
    "limits": (), "terms": (), "errors": (), "folders": (), "kept": (), "progress": (),
    "compiling": (),
    "schema": ("limits",), "code_cache": ("folders",), "system": ("code_cache",),
    "decoding": ("system", "limits"), "words": (), "bounds": ("errors",), "ledger": (),
    "tables": (*BASE, "tables"),
    "world": (*BASE, "tables"),
    "edges": (*BASE, "tables"),
    "systems": (*BASE, "tables", "systems"),
    "schedule": (*BASE, "tables", "systems"),
    "recording": (*BASE, "code_cache", "ledger", "tables", "schedule", "world"),
    "engine": (*BASE, "tables", "systems", "schedule", "world", "executors.base", "grammars.base",
               "recording"),
    "grammars": (*BASE, "tables", "grammars"),
    "executors": (*BASE, "kept", "tables", "world", "contract.prepared", "executors"),
    "contract": ("limits", "errors", "contract"),
    "cores": ("limits", "errors", "folders", "progress", "contract", "cores", "ignition"),
    "frontend": (*BASE, "edges", "world", "contract", "cores", "grammars", "frontend"),
    "runtime": (*BASE, "code_cache", "kept", "progress", "ledger", "recording", "tables",
                "systems", "schedule", "world", "edges", "engine", "executors", "contract",
                "cores", "grammars", "runtime"),
}
MAY_IMPORT_WIRE = ("contract", "cores", "ignition", "simulation")


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path):
    """Dotted name inside the package: `tables.pages`."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(path):
    """Every module that a file imports, also inside functions; not what only type checks need."""
    names = set()
    waiting = [tree_of(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            waiting.extend(ast.iter_child_nodes(node))
    return names


def relative(path):
    return path.relative_to(ROOT).as_posix()


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=relative)


def test_no_model_names():
    found = []
    for path in (*SOURCES, *(ROOT / "proto").glob("*.proto"), *BUILD_FILES):
        if relative(path).removeprefix("helios_dod/").startswith(MODEL_NAMES_ALLOWED):
            continue
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if MODEL_NAMES.search(line):
                found.append(f"{relative(path)}:{i}: {line.strip()}")
    assert not found, "\n".join(found)


def test_model_names_are_recognised():
    for text in ("a SmolLM2 core", "llama.cpp", "LlamaForCausalLM", "qwen2", "GPT-2"):
        assert MODEL_NAMES.search(text), text
    assert not MODEL_NAMES.search("graphics and sulphide")


@named(SOURCES)
def test_numba_is_applied_in_one_module(path):
    if path.name == "system.py":
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "triton":
            continue
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
        imported = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba")
        names = {alias.name for alias in node.names} if imported else {name}
        assert not names & JIT_NAMES, f"{relative(path)}:{node.lineno}: {names & JIT_NAMES}"


@named(SOURCES)
def test_imports_go_one_way(path):
    here = place(path)
    layer = here.split(".")[0]
    imports = imports_of(path)
    cuda = {name for name in imports if name.split(".")[0] == "cuda"}
    assert not cuda or here.startswith("executors.cuda"), f"{here} imports {cuda}"
    wire = {name for name in imports
            if name.startswith(("google.protobuf", "helios_dod.contract.wire"))}
    assert not wire or layer in MAY_IMPORT_WIRE, f"{here} imports protobuf: {sorted(wire)}"
    if layer not in MAY_IMPORT:
        return
    for name in imports:
        if not name.startswith("helios_dod.") or name == "helios_dod.__version__":
            continue
        target = name.removeprefix("helios_dod.")
        allowed = any(target == part or target.startswith(part + ".") for part in MAY_IMPORT[layer])
        assert allowed, f"{here} imports {target}"


@named([*SOURCES, *OTHERS])
def test_lengths(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert path in OTHERS or len(lines) <= FILE_LINES_MAX, f"{relative(path)}: {len(lines)} lines"
    long = [i for i, line in enumerate(lines, 1) if len(line) > LINE_MAX]
    assert not long, f"{relative(path)}: lines over {LINE_MAX} columns: {long}"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{relative(path)}: {node.name}: {length} lines"


@named(SOURCES)
def test_files_say_what_they_are_for(path):
    assert ast.get_docstring(tree_of(path)) or not path.read_text().strip(), relative(path)


@named([*SOURCES, *OTHERS, *BUILD_FILES])
def test_nothing_is_left_over(path):
    text = path.read_text(encoding="utf-8")
    for mark in ("TO" "DO", "FIX" "ME", "X" "XX"):
        assert mark not in text, f"{relative(path)}: {mark}"
    for machine in ("/wo" "rk/", "/ro" "ot/", "/op" "t/"):
        assert machine not in text, f"{relative(path)}: a path of one machine"


@pytest.mark.parametrize("prefix, enum", [
    ("OP_", manifest_pb2.Operation), ("SOURCE_", contract_pb2.ValueSource),
    ("INDEX_", contract_pb2.Indexing),
])
def test_terms_equal_the_wire(prefix, enum):
    ours = {name.removeprefix(prefix): value for name, value in vars(terms).items()
            if name.startswith(prefix)}
    assert ours
    for name, value in ours.items():
        assert enum.Value(name) == value, name


def test_every_operation_has_a_term():
    ours = {name.removeprefix("OP_") for name in vars(terms) if name.startswith("OP_")}
    names = {value.name for value in manifest_pb2.Operation.DESCRIPTOR.values if value.number}
    assert names == ours


def serving_modules():
    """Modules that a served or embedded engine loads."""
    folders = ("server", "runtime", "frontend", "systems", "tables", "executors/host",
               "executors/cuda")
    found = [place(path) for folder in folders for path in sorted((PACKAGE / folder).glob("*.py"))]
    return [name.removesuffix(".__init__") for name in found] + ["engine", "world", "schedule"]


def test_serving_imports_nothing_of_preparation():
    """What needs PyTorch or a checkpoint library is never loaded while serving."""
    modules = [f"helios_dod.{name}" for name in serving_modules()]
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_command_line_starts_light():
    """`helios --version` and usage errors load neither numba nor protobuf."""
    program = (
        "import sys\nfrom helios_dod.cli import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\n"
        "heavy = ('numba', 'numpy', 'google.protobuf', 'granian', 'tokenizers', 'cryptography')\n"
        "print([name for name in heavy if name in sys.modules])\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
