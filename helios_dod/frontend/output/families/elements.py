"""Kind 3 syntaxes: XTML. Source: the encoder that writes it (there is no template).

Attributes escape & and then "; bodies are never escaped.
"""

from helios_dod.frontend.output.syntax import ElementSyntax, EnvelopeSyntax, OutputSyntax

ELEMENTS = ElementSyntax(
    open="<|open|>", close="<|close|>", separator="<|sep|>", message="message", think="think",
    response="response", tools="tools", call="call", argument="argument", json="json",
    name_attribute="tool", key_attribute="key", type_attribute="type", string_type="string",
    escapes=(("&quot;", '"'), ("&amp;", "&")))

XTML = OutputSyntax(
    ELEMENTS, tokens=("<|open|>", "<|close|>", "<|sep|>"),
    dropped=("<|end_of_msg|>", "[EOS]", "[BOS]"),
    envelope=EnvelopeSyntax(boundaries=("<|end_of_msg|>",)))
