"""Regular expressions and grammars that a request writes, in Lark."""

from helios_dod.frontend.grammars.bounds import check_bytes, check_regex, check_rules, refuse
from helios_dod.frontend.grammars.endings import lark_ends


def lark_of_regex(pattern: str, field: str) -> str:
    """A terminal of a regular expression. Raises RequestError."""
    from llguidance import regex_to_lark

    check_regex(pattern, field)
    return f"/{regex_to_lark(pattern, 'd')}/"


def lark_of_grammar(text: str, field: str) -> str:
    """A Lark grammar, or a GBNF one in Lark's words. Raises RequestError."""
    from llguidance.gbnf_to_lark import any_to_lark

    check_rules(text, field)
    try:
        lark = str(any_to_lark(text))
    except (Exception, RecursionError) as error:  # the converter raises what it happens to
        raise refuse(field, f"is neither a Lark nor a GBNF grammar: {error}") from None
    if "%import" in lark:
        raise refuse(field, "imports other grammars, which is not supported")
    if not lark_ends(lark):
        raise refuse(field, "has rules that need themselves, so that no answer ends")
    check_bytes(lark, field)
    return lark
