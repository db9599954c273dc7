"""The words in a cell of a page, for the tests of cells and of prose."""

import ast


def literals(node):
    """Strings in code, but no keys and no comparing words that are computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    named = isinstance(node, ast.Call) and ast.unparse(node.func) == "word"
    if not named and not isinstance(node, ast.Subscript):
        for inner in ast.iter_child_nodes(node):
            yield from literals(inner)


def words_in(cell):
    """What a ``say`` cell says, without its numbers."""
    return " ".join(literals(ast.parse(cell.source)))
