"""What the parser reads of a template's answer, rendered again, is the same tokens, for published
tokenizers and their templates. The whole of it: tests/round_trips.py."""

import random

import pytest
from round_trips import FAMILIES, preparer_of, round_trip

MESSAGES = 40


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_come_back_to_the_token(family: str) -> None:
    if preparer_of(family) is None:
        pytest.skip(f"no tokenizer of {FAMILIES[family].tokenizer}: see HELIOS_TOKENIZERS in "
                    "tests/round_trips.py")
    choose, calls, seen = random.Random(7), 0, 0
    for _ in range(MESSAGES):
        whole, again, found = round_trip(family, choose)
        assert whole == again, found
        calls += len(found.get("tool_calls", ()))
        seen += len(whole)
    assert seen > 20 * MESSAGES and (calls > MESSAGES // 2) == (FAMILIES[family].tools is not None)
