"""Frontend identifiers cannot reach scheduling, cache policy, packing or completion."""

import ast
import dataclasses
import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError
from helios_dod.contract.frontend import TOOL_KINDS
from helios_dod.contract.prepared import PreparedFrontend, PreparedImage
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.cores.reader import TokenTexts
from helios_dod.grammars.library import Source
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.selection import Options, choose
from helios_dod.world import boot
from tests.test_contract_decode import pair
from tests.test_contract_extents import SYNTAXES, with_output, with_vision

PACKAGE = Path(__file__).resolve().parent.parent / "helios_dod"
# What no frontend identifier may reach.
BEHIND = ("tables", "systems", "executors", "runtime", "grammars")
# What may pass all the same, through one record alone: the texts that a mask is computed from.
PASSING = {"tokenizer_json", "vocabulary", "eos", "delimiters"}
ALONE = ("schedule.py", "engine.py", "world.py", "edges.py", "limits.py", "terms.py")
SOURCES = sorted({*(p for folder in BEHIND for p in (PACKAGE / folder).rglob("*.py")),
                  *(PACKAGE / name for name in ALONE)})
ENUMS = ("ToolSyntax", "ReasoningSyntax", "TextDecoding", "ImagePreparation", "ImageLayout",
         "ResizeFilter", "PatchOrder",
         "RenderConstraint", "ArgumentTyping", "CallIds")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_behind_the_frontend_names_its_identifiers(path):
    forbidden = {field.name for record in (PreparedFrontend, PreparedImage)
                 for field in dataclasses.fields(record)} - {"output", "patch", "eos_tokens"}
    values = {name for enum in ENUMS for name in dict(getattr(contract, enum).items())}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in forbidden | values, f"line {node.lineno}: {node.attr}"
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            reached = node.attr == "frontend" and owner in ("contract", "prepared", "model")
            assert not reached, f"line {node.lineno}: {owner}.frontend"
            assert node.attr not in ("serving", "token_texts") or owner_of_texts(path, node), (
                f"line {node.lineno}: {node.attr}")
        if isinstance(node, ast.arg) and path.parent.name == "grammars":
            loose = ast.unparse(node.annotation) == "Any" if node.annotation else False
            assert not loose or node.arg not in ("core", "contract"), f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
            bad = [n for n in names if n.startswith("helios_dod.frontend")
                   or n == "helios_dod.contract.frontend" or n in ("PreparedFrontend",)]
            assert not bad, f"line {node.lineno}: {bad}"


def owner_of_texts(path, node):
    """The one place that takes token texts from a core, and nothing else of its frontend data."""
    return node.attr == "token_texts" and path.name == "native_model.py"


def test_only_token_texts_pass_to_the_grammar_worker():
    """The allowance by name: no selector, syntax or layout is a part of it, and it is the same
    whatever these are."""
    assert {field.name for field in dataclasses.fields(TokenTexts)} == PASSING
    tree = ast.parse((PACKAGE / "runtime" / "native_model.py").read_text())
    taken = [node for node in ast.walk(tree) if getattr(node, "attr", "") == "token_texts"]
    assert len(taken) == 1
    assert {field.name for field in dataclasses.fields(Source)} <= PASSING
    for path in (PACKAGE / "grammars").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith(
                    ("helios_dod.cores", "helios_dod.contract")), path


def test_importing_the_engine_imports_no_frontend():
    program = ("import sys\nimport helios_dod.engine, helios_dod.schedule\n"
               "import helios_dod.runtime.binding, helios_dod.runtime.native_model\n"
               "import helios_dod.executors.host.executor, helios_dod.grammars.worker\n"
               "print([n for n in sys.modules if n.startswith(('helios_dod.frontend', "
               "'helios_dod.server'))])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def world_of(serving, manifest):
    """Every byte that start-up makes of a contract for scheduling, packing and completion."""
    prepared = decode(serving, manifest)
    options = Options(cache_bytes=1 << 20, size="SMALL")
    selection = choose(prepared, prepared.cache.page_bytes,
                       lambda geometry: staging_layout(prepared, geometry)[1], options)
    world = boot(selection.limits)
    first = bind(world, prepared, selection)
    blank = dataclasses.replace(prepared, frontend=None, vision=None, input_vocabulary=0)
    settings = world[0]["settings"]
    settings["input_vocabulary"] = 0  # declared image sentinels are part of a range check
    digest = hashlib.sha256(np.ascontiguousarray(world).view(np.uint8)).digest()
    return digest, selection, first, blank


def test_the_same_world_whatever_the_frontend_is():
    plain = world_of(*pair())
    assert world_of(*with_output()) == plain
    for layout, preparation in itertools.product(
            (contract.FEATURE_RUN, contract.FEATURE_GRID), contract.ImagePreparation.values()[1:]):
        serving, manifest, image = with_vision()
        image.layout, image.preparation = layout, preparation
        if preparation == contract.CAP_AND_PAD:
            image.settings.patches_max = image.settings.side_patches_max = 64
        assert world_of(serving, manifest) == plain
    enums = (contract.ToolSyntax, contract.ReasoningSyntax, contract.TextDecoding)
    pairs = itertools.product(*(enum.values()[1:] for enum in enums))
    seen = 0
    for tool, reasoning, decoding in pairs:
        serving, manifest = pair()
        frontend = serving.model.frontend
        frontend.tool_syntax, frontend.reasoning_syntax = tool, reasoning
        if kind := TOOL_KINDS[tool]:
            getattr(frontend.output, kind).CopyFrom(SYNTAXES[kind])
        if reasoning == contract.THINK_TAGS:
            frontend.output.think.open, frontend.output.think.close = "<think>", "</think>"
        if frontend.HasField("output"):
            frontend.output.call_ids = contract.CALL_ID_SHORT
            frontend.output.unknown_names = contract.UNKNOWN_NAMES_KEEP
        frontend.text_decoding = decoding
        frontend.strip_leading_space = not frontend.strip_leading_space
        frontend.prefix_boundaries.add(roles=["user"], constraint=contract.RENDER_IF_PREFIX)
        try:
            decode(serving, manifest)
        except ContractError as error:
            assert "syntax" in error.field
            continue
        seen += 1
        assert world_of(serving, manifest) == plain
    assert seen >= 20


def test_the_comparison_can_fail():
    serving, manifest = pair()
    serving.context_tokens = 32
    assert world_of(serving, manifest) != world_of(*pair())
