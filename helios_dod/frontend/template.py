"""Chat templates: Jinja source from the core, run in an immutable sandbox with bounds.

The names that templates may use are those of Hugging Face's `apply_chat_template`: messages, tools,
documents, add_generation_prompt, the core's template tokens, raise_exception, strftime_now, tojson
(plain JSON, no HTML escapes), loop controls and the `generation` block (here without effect).
Every loop looks at the clock, so a template that writes nothing ends in time too.
"""

import time
from collections.abc import Sequence
from typing import Any

from helios_dod.errors import SURROGATE, scalars
from helios_dod.frontend.sandbox import CHARGE, CLOCK, JOIN, join_texts, make_sandbox, parse
from helios_dod.frontend.sizes import BUDGET, OUTPUT_CHARACTERS_MAX, Budget, TemplateError, charge

RENDER_SECONDS_MAX = 2.0  # of this thread's processor: a machine that is busy refuses nothing


class ChatTemplate:
    """A compiled template. Raises TemplateError if the source is not a template."""

    def __init__(self, source: str, template_tokens: dict[str, str]) -> None:
        environment = make_sandbox()
        try:
            tree, self.variables = parse(environment, source)
            self.template = environment.from_string(tree)
        except TemplateError:
            raise
        except Exception as error:  # Jinja and Python's compiler: syntax, recursion, numbers
            raise TemplateError(f"chat template: {error or type(error).__name__}") from None
        self.tokens = template_tokens

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True,
               tools: Sequence[Any] | None = None, documents: Sequence[Any] | None = None,
               variables: dict[str, Any] | None = None) -> str:
        """The prompt text of messages. variables: others that the template may use.

        Raises TemplateError."""
        pieces, size = [], 0
        deadline = time.thread_time() + RENDER_SECONDS_MAX

        def look() -> None:
            if time.thread_time() > deadline:
                raise TemplateError(f"chat template: more than {RENDER_SECONDS_MAX} seconds")

        given = {**self.tokens, **(variables or {}), "messages": messages, "tools": tools,
                 "documents": documents, "add_generation_prompt": add_generation_prompt,
                 CLOCK: look, JOIN: join_texts, CHARGE: charge}
        before = BUDGET.set(Budget(look, list(given.values())))
        try:
            for piece in self.template.generate(given):
                size += len(piece)
                if size > OUTPUT_CHARACTERS_MAX:
                    raise TemplateError(
                        f"chat template: more than {OUTPUT_CHARACTERS_MAX} characters of output")
                look()
                pieces.append(piece)
        except Exception as error:  # whatever the template's own operations raise
            problem = str(error)
            if not isinstance(error, TemplateError):
                problem = f"chat template: {type(error).__name__}: {problem}"
            forget_frames(error)
        else:
            return whole("".join(pieces))
        finally:
            BUDGET.reset(before)
        raise TemplateError(scalars(problem))


def whole(text: str) -> str:
    """A text that can be encoded. Raises TemplateError: an escape in the source may write half of
    a surrogate pair."""
    if (found := SURROGATE.search(text)) is not None:
        raise TemplateError("chat template: the template wrote text that is no Unicode scalar "
                            f"value: U+{ord(found[0]):04X} at character {found.start()}")
    return text


def forget_frames(error: BaseException | None) -> None:
    """Lets go of what a template had made when it failed: not even the error's own frames keep
    it."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
