"""From a request to the grammar that its output is held to, tried before it is served."""

from collections.abc import Sequence
from typing import NoReturn

from helios_dod.frontend.assets import Assets
from helios_dod.frontend.grammars.calls import Calls, CallTool
from helios_dod.frontend.grammars.envelope import Demand, Envelope
from helios_dod.frontend.grammars.structured import answer_of
from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.start import start_state
from helios_dod.frontend.output.terms import Start
from helios_dod.frontend.reading import Readers
from helios_dod.frontend.requests import ChatRequest, RequestError, chosen_tool
from helios_dod.frontend.syntaxes import carries_reasoning
from helios_dod.grammars.library import GrammarError, Source
from helios_dod.grammars.trial import Trials

CLOSED_TOKENS = 8  # how far from the prompt's end reasoning may have been closed


def demand_of(request: ChatRequest) -> Demand | None:
    """What a request demands of the whole output; None: nothing. Raises RequestError."""
    answer = answer_of(request)
    tools = request.tools if request.tool_choice != "none" else None
    named = chosen_tool(request.tool_choice)
    required = named is not None or request.tool_choice == "required"
    strict = any(tool.function.strict for tool in tools or ())
    calls = None
    budget = request.thinking_token_budget
    if tools and (required or strict or answer is not None or budget is not None):
        calls = Calls(
            tuple(CallTool(tool.function.name, tool.function.parameters or {},
                           bool(tool.function.strict), f"tools[{i}].function")
                  for i, tool in enumerate(tools)
                  if named in (None, tool.function.name)),
            request.parallel_tool_calls is not False and named is None,
            "tool_choice" if required else "tools",
            behind_text=not required and answer is None)
    if answer is None and calls is None and budget is None:
        return None
    return Demand(answer, calls, required, budget)


def field_of(demand: Demand) -> str:
    """The field that asks for the constraint, for errors."""
    if demand.calls is not None and demand.calls_required:
        return demand.calls.field
    if demand.answer is not None:
        return demand.answer.field
    return "tools" if demand.calls is not None else "thinking_token_budget"


def check_together(request: ChatRequest, field: str) -> None:
    """Raises RequestError for what cannot go with a constrained answer. Stops of tokens can: they
    end it where its grammar would go on, as the limit does."""
    stops = request.stop is not None and request.stop != []
    for name, given in (("stop", stops), ("ignore_eos", bool(request.ignore_eos)),
                        ("min_tokens", bool(request.min_tokens))):
        if given:
            raise RequestError(f"'{name}' cannot be combined with '{field}': the output ends where "
                               "its grammar does.", name, "invalid_value")


class Constrainer:
    """Makes and tries the grammars of one core's requests. A trial blocks its caller."""

    def __init__(self, assets: Assets, readers: Readers | None) -> None:
        self.assets, self.readers = assets, readers
        self.trials = Trials(Source(assets.tokenizer_json, assets.vocabulary, assets.eos))
        special = assets.byte_table.special.tolist()
        self.specials = tuple(i for i, found in enumerate(special)
                              if found and i not in assets.eos)

    def grammar(self, request: ChatRequest, prompt: Sequence[int], plain: bool = False) -> bytes:
        """The bytes of `Submission.grammar`; empty: nothing is demanded. plain: all output is text.
        Raises RequestError."""
        demand = demand_of(request)
        if demand is None:
            return b""
        field = field_of(demand)
        if not self.assets.masks:
            raise RequestError(f"'{field}': this core has no programs that take grammar masks.",
                               field, "unsupported_value")
        check_together(request, field)
        bound = None if self.readers is None or plain else self.readers.bound(
            bool(request.tools) and request.tool_choice != "none")
        envelope = self.envelope(bound, prompt)
        if demand.thinking_budget is not None and (bound is None or not (
                bound.syntax.think or carries_reasoning(bound.syntax))):
            raise RequestError("'thinking_token_budget': this model declares no reasoning syntax.",
                               "thinking_token_budget", "unsupported_value")
        text = envelope.text(demand)
        try:
            if bound is not None and demand.answer is not None and not demand.calls_required:
                alone = Envelope(None, Start.CONTENT, False, False)  # behind reasoning, a trial
                self.trials.check(alone.text(Demand(demand.answer)))  # may not come to the answer
            self.trials.check(text)
        except GrammarError as error:
            refuse_grammar(field, str(error))
        return text

    def envelope(self, bound: Bound | None, prompt: Sequence[int]) -> Envelope:
        """The grammar's writer behind a prompt."""
        strip = self.assets.strip_leading_space
        if bound is None or self.readers is None:
            return Envelope(None, Start.CONTENT, False, strip, self.specials)
        start = start_state(bound, prompt, self.readers.tokens)
        think = bound.syntax.think
        closed = False
        if think is not None:
            tail = "".join(bound.symbols.get(token) or
                           self.readers.tokens[token].decode("latin-1")
                           for token in prompt[-CLOSED_TOKENS:])
            closed = bound.encode(think.close) in tail
        return Envelope(bound, start, closed, strip, self.specials)


def refuse_grammar(field: str, reason: str) -> NoReturn:
    """The error about a grammar that cannot be served."""
    code = "unsupported_value" if "nimplemented" in reason else "invalid_value"
    raise RequestError(f"'{field}' cannot be compiled: {reason}.", field, code)
