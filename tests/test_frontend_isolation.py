"""Texts that a tokenizer's pattern is slow over are refused in time, and others go on."""

import json
import multiprocessing
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
import server_harness
import text_tables
from tokenizers import Tokenizer

from helios_dod.frontend import isolation
from helios_dod.frontend.isolation import Child, Ended, Isolated
from helios_dod.frontend.prompt import PromptEncoder
from helios_dod.frontend.tokenizer_data import TokenizerError

QUADRATIC, CUBIC = "a*b", "a*a*b"  # over a run of `a`, where a `b` lies behind what ends it
TEXTS = ("", "Hello, world!", "naïve — 中文 🙂", "  a\n\n b", "x" * 5000)


def run_of(count):
    return "a" * (count - 2) + "\1b"


def tokenizer_json(pattern=None):
    """The byte-level tokenizer, which also splits by a pattern."""
    document = json.loads(text_tables.byte_level().tokenizer.to_str())
    if pattern is not None:
        part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                "invert": False}
        document["pre_tokenizer"] = {"type": "Sequence",
                                     "pretokenizers": [part, document["pre_tokenizer"]]}
    return json.dumps(document)


@pytest.fixture
def encoder(request):
    made = PromptEncoder(tokenizer_json(getattr(request, "param", None)).encode())
    made.isolate()
    yield made
    made.library.close()


def test_it_is_what_the_library_makes(encoder):
    library = Tokenizer.from_str(tokenizer_json())
    for text in TEXTS:
        encoded = library.encode(text, add_special_tokens=False)
        assert encoder.encode(text) == encoded.ids
        ids, places = encoder.library(text, True)
        assert ids == encoded.ids and [tuple(place) for place in places] == encoded.offsets
    assert encoder.encode_parted("Hello, world!", ("Hello,",))[1] == [
        len(library.encode("Hello,").ids)]


@pytest.mark.parametrize("encoder, count", [(QUADRATIC, 100_000), (CUBIC, 4000)], indirect=[
    "encoder"])
def test_a_slow_pattern_is_refused_in_time(encoder, count):
    began, before = time.monotonic(), encoder.encode("Hello")
    assert not encoder.slow
    most = isolation.seconds_for(count)
    for _ in range(2):
        with pytest.raises(TokenizerError, match=f"{count} bytes of text take more than "
                                                 f"{most:.2f} s to encode"):
            encoder.encode(run_of(count))
        assert encoder.slow and encoder.encode("Hello") == before
    assert time.monotonic() - began < 4 * isolation.WALL_RATIO * most


@pytest.mark.parametrize("encoder", [".{0,16}" * 8 + "(?!.)(?=.)"], indirect=True)
def test_a_text_that_the_library_gives_up_on_is_answered_and_not_written(encoder, capfd):
    with pytest.raises(TokenizerError, match="retry-limit"):
        encoder.encode("a" * 64)
    assert capfd.readouterr().err == ""


def too_much_memory():
    """In a process of its own: a child has no need of the system for what its parent had freed."""
    isolation.MEMORY_MAX = 8 << 20  # as children see it that are forked now
    encoder = PromptEncoder(tokenizer_json().encode())
    encoder.isolate()
    with pytest.raises(TokenizerError, match=r"3000000 bytes of text ended .* it has 8 MiB"):
        encoder.encode("word " * 600_000)
    assert encoder.encode("a b")
    encoder.library.close()


def test_too_much_memory_is_refused():
    process = multiprocessing.get_context("spawn").Process(target=too_much_memory)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_what_the_library_gives_up_on_is_said(encoder):
    def gives_up(text, placed):
        raise TokenizerError("no such word")

    isolated = Isolated(gives_up)
    for _ in range(2):
        with pytest.raises(TokenizerError, match="no such word"):
            isolated("a", False)
    assert len(isolated.idle) == 1 and not isolated.slow
    isolated.close()


def test_a_child_that_was_killed_is_replaced(encoder):
    child, = encoder.library.idle
    os.kill(child.pid, signal.SIGKILL)
    assert encoder.encode("Hello") == Tokenizer.from_str(tokenizer_json()).encode("Hello").ids
    assert not encoder.slow and encoder.library.idle != [child]


def test_each_call_at_a_time_has_a_child(encoder):
    expected, found = encoder.encode("word " * 2000), []
    threads = [threading.Thread(target=lambda: found.append(encoder.encode("word " * 2000)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert 1 <= len(encoder.library.idle) <= 4


def test_a_child_ends_with_its_caller():
    child = Child(lambda text, placed: ([len(text)], ()))
    assert child.ask(b"abc", False) == ((3).to_bytes(4, "little"), True)
    assert child.close() == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, 0)
    broken = Child(lambda text, placed: os.abort())
    with pytest.raises(Ended, match=f"-{int(signal.SIGABRT)}"):
        broken.ask(b"", False)


def test_a_child_keeps_no_other_descriptor(monkeypatch):
    """It closes those that are open: where the system has no close_range, as with Python built for
    an older one, os.closerange tries every number there may be, for minutes."""
    monkeypatch.delattr(os, "closerange")
    here, there = os.pipe()
    os.close(there)
    child = Child(lambda text, placed: (sorted(map(int, os.listdir("/proc/self/fd"))), ()))
    numbers = np.frombuffer(child.ask(b"", False)[0], np.int32)
    kept = [number for number in numbers.tolist() if number > 2]
    assert here not in kept and len(kept) == 2  # its connection, and what listed them
    assert child.close() == 0
    os.close(here)


def test_a_child_that_uses_no_processor_is_ended(monkeypatch):
    """As one that waits for a lock that no process holds any more."""
    monkeypatch.setattr(isolation, "SECONDS_BASE", 0.02)
    stuck = Isolated(lambda text, placed: time.sleep(3600))
    with pytest.raises(TokenizerError, match=r"1 bytes of text take more than 0\.02 s"):
        stuck("a", False)
    assert not stuck.idle


@pytest.mark.parametrize("pattern, count", [(QUADRATIC, 60_000), (CUBIC, 4000)])
def test_a_server_answers_others_meanwhile(tmp_path, pattern, count):
    core = tmp_path / "tokenizer.json"
    core.write_text(tokenizer_json(pattern))
    slow, answers = [{"role": "user", "content": run_of(count)}], []
    with server_harness.serving(core, "workers=1") as server:
        answers.append(server.post(messages=slow))  # prepared at once, as short ones are
        thread = threading.Thread(target=lambda: answers.append(server.post(messages=slow)))
        thread.start()
        others = 0
        while thread.is_alive():
            assert server.post(max_tokens=1).status_code == 200
            others += 1
        assert others > 1  # the last may have been answered after it
        for answer in answers:
            assert answer.status_code == 400
            found = re.search(r"The tokenizer refused 'messages': .*?(\d+) bytes of text take more "
                              r"than ([\d.]+) s to encode", answer.json()["error"]["message"])
            assert found and int(found[1]) >= count
            assert found[2] == f"{isolation.seconds_for(int(found[1])):.2f}"
