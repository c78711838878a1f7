"""Syntaxes as data: a module for each structural kind, and all of them by name in `catalog`.

They are facts of public formats, named by what they look like. A syntax belongs to any core whose
template writes it."""
