"""Whether a text is inside a fenced code block (CommonMark 0.31, section 4.5), as it comes."""

INDENT_MAX = 3
DEAD, INDENT, RUN, INFO, CLOSING = 0, 1, 2, 3, 4


class Fences:
    """One text's fences. `inside` is right at the beginning of each line."""

    def __init__(self) -> None:
        self.inside = False
        self.fence = ("", 0)  # character and length of the open fence
        self.line = INDENT  # what the current line may still be
        self.blanks = 0
        self.run = ("", 0)

    @property
    def idle(self) -> bool:
        """Whether nothing before the next newline matters."""
        return self.line == DEAD

    def read(self, text: str) -> None:
        """Takes the next text."""
        at = 0
        while at < len(text):
            if self.line == DEAD:
                at = text.find("\n", at) + 1
                if at == 0:
                    return
                self.begin_line()
                continue
            self.step(text[at])
            at += 1

    def begin_line(self) -> None:
        self.line, self.blanks, self.run = INDENT, 0, ("", 0)

    def step(self, char: str) -> None:
        """Takes one character of a line that may be a fence."""
        if char == "\n":
            self.end_line()
        elif self.line == INDENT:
            if char == " " and self.blanks < INDENT_MAX:
                self.blanks += 1
            elif char in "`~" and (not self.inside or char == self.fence[0]):
                self.line, self.run = RUN, (char, 1)
            else:
                self.line = DEAD
        elif self.line == RUN and char == self.run[0]:
            self.run = (char, self.run[1] + 1)
        elif self.line == RUN and self.run[1] < 3:
            self.line = DEAD
        elif self.inside:
            self.line = CLOSING if char in " \t\r" and self.run[1] >= self.fence[1] else DEAD
        else:
            self.line = DEAD if char == "`" == self.run[0] else INFO

    def end_line(self) -> None:
        """A newline decides what the line was."""
        if self.line in (RUN, INFO, CLOSING) and self.run[1] >= 3:
            if not self.inside:
                self.inside, self.fence = True, self.run
            elif self.line in (RUN, CLOSING) and self.run[1] >= self.fence[1]:
                self.inside = False
        self.begin_line()
