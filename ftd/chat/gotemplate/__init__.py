"""Go's ``text/template`` as Modelfile TEMPLATEs use it: lexer → parser → evaluator, and the data of a chat.

    parse(source) -> Tree            parser: syntax, undefined functions and variables are errors here
    Evaluator(tree).run(data)        evaluator: executes the tree over plain values
    chat.pieces(source, variables)   chat: collated messages, modes (messages, legacy, suffix)
    discovery                        what a template mentions: capabilities, thinking and tool-call tags

Only strings, numbers, lists, maps and the structs of ``values`` are ever seen by a template.
"""

from ftd.chat.gotemplate.nodes import GoTemplateError, Tree
from ftd.chat.gotemplate.parser import parse

__all__ = ["GoTemplateError", "Tree", "parse"]
