"""The block that chat templates mark an assistant's text with."""

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationBlock(Extension):
    """{% generation %} ... {% endgeneration %}: marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012, the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The block's body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
