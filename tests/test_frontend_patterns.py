"""Which patterns a tokenizer may split by."""

import pytest

from helios_dod.frontend.patterns import PatternError, check_pattern

WORDS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER, UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
HAN = r"&&[^\p{Han}]]"


@pytest.mark.parametrize("pattern", [
    ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + WORDS,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    rf"{ENDINGS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[\u4e00-\u9fa5\u3040-\u309f]+", r"\p{N}{1,3}", r"\s?\p{L}+", r"\s+$", r"[\r\n]", "\u2581",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?])]+", r"(?=(\d{3})+(?!\d))", r"\d{1,3}(?=(?:\d{3})*\b)", " {2,}",
    rf"[\p{{Han}}]+|{UPPER[:-1]}{HAN}*{LOWER[:-1]}{HAN}+{ENDINGS}?", r"(?:\p{L}|\p{M})+",
    r"((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?i:'s|'t)?", "(?:a|b|c)+", "[[:alpha:]]+x",
])
def test_what_splits_words_is_accepted(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize("pattern", [
    "(a|aa)+z", "(a+)+$", "((a{1,1000}){1,1000}){1,1000}", "(a?)*b", "(?:a|a)+z", "(?:a|A)+z",
    "(a|.)+", r"(\w|a)+", r"(\p{L}|\p{Lu})+", "(|a)+", "(?>(a|aa)+z)", "(?=(a|aa)+z)", "([]]+)+",
    "([[a]]*)*", "[^]]*(a|aa)+z", "(?<n>a|aa)+z", "(?i-m:a|aa)*", "((a|aa))+z", "(a|aa)++z",
    "(a|aa)+?z", "(a|aa){30}", "(a|aa){,30}z", "(a{1,3}+)+", "a{1,3}+z", "(?i)(a|aa)+"])
def test_repeated_groups_that_match_in_several_ways(pattern: str) -> None:
    with pytest.raises(PatternError, match="exponentially many ways"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern, problem", [
    ("a?" * 9 + "z", "at most 8 quantified parts"), ("(a|aa)" * 9, "at most 8 quantified parts"),
    ("b|(?:a*a*a*a*z)", "3 of them without a limit, expected, got 4 and 4"),
    ("(?x)(a|aa) +z", "'[(][?]x[)]'"), ("(a|aa)(?#c)+z", "[(][?]#c"), ("(?~a)", "[(][?]~a"),
    (r"(?<a>\g<a>)", "recursion"), (r"(a+)\1+", "references"), (r"\c[(a|aa)+z]", "control")])
def test_what_hides_them(pattern: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        check_pattern(pattern)
