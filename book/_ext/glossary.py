"""Sphinx extension: on each page, the first use of a word of the glossary is a link.

The pages stay plain Markdown: the words are found when the book is built. What a word
means is shown when the mouse rests on it. A term that ends with a bracket, ``key (of
attention)``, is ambiguous and is never linked; neither are names of chapters after "You
need:", nor words of the changelog.
"""

import re

from docutils import nodes
from sphinx import addnodes

CHANGELOG = "book/changelog"
NOT_IN = (
    nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.raw,
    nodes.math, nodes.math_block, nodes.caption, nodes.image, nodes.table,
    nodes.citation, addnodes.pending_xref, addnodes.toctree, addnodes.glossary,
)  # fmt: skip


def terms(env):
    """``{term: (page, anchor)}`` of all terms that can be linked."""
    return {
        name: (page, anchor)
        for (kind, name), (page, anchor) in env.domains["std"].objects.items()
        if kind == "term" and not name.endswith(")")
    }


def meanings(env, page):
    """``{anchor: definition}`` of the terms on a page, as plain text."""
    found = {}
    for item in env.get_doctree(page).findall(nodes.definition_list_item):
        for term in item.findall(nodes.term):
            text = item.children[-1].astext()
            found |= dict.fromkeys(term["ids"], " ".join(text.split()))
    return found


def pattern(names):
    """Finds the longest term at a place, also in the plural, whole words only."""
    longest_first = sorted(names, key=len, reverse=True)
    words = (spaced(name).removesuffix("y") + ending(name) for name in longest_first)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])", re.IGNORECASE)


def spaced(name):
    """A term as a pattern; a line may end between its words."""
    return r"\s+".join(map(re.escape, name.split()))


def ending(name):
    return r"(?:y|ies)" if name.endswith("y") else r"(?:s|es)?"


def term_of(found, names):
    """The term of which ``found`` is a form."""
    return next(name for name in names if pattern([name]).fullmatch(found))


def is_prose(text):
    """Is a piece of text a sentence, rather than a title, a link, code or an output?"""
    node = text.parent
    while node is not None:
        if isinstance(node, NOT_IN) or "cell_output" in node.get("classes", []):
            return False
        if isinstance(node, nodes.paragraph) and "You need:" in node.astext():
            return False
        node = node.parent
    return True


def join_lines(doctree):
    """Make one text of those that stand side by side: MyST makes one of each line."""
    for parent in {text.parent for text in doctree.findall(nodes.Text)}:
        children = []
        for child in parent.children:
            if children and all(
                isinstance(c, nodes.Text) for c in (child, children[-1])
            ):
                child = nodes.Text(children.pop().astext() + child.astext())
            children.append(child)
        if len(children) < len(parent.children):
            parent.children = []
            parent.extend(children)


def link_first_uses(app, doctree, page):
    known = terms(app.env)
    if not known or app.builder.format != "html":
        return
    glossary = {where for where, _ in known.values()}
    if page in glossary | {CHANGELOG}:
        return
    means = {a: t for where in glossary for a, t in meanings(app.env, where).items()}
    left = dict(known)
    join_lines(doctree)
    for text in [t for t in doctree.findall(nodes.Text) if is_prose(t)]:
        pieces, rest = [], text.astext()
        while left and (match := pattern(left).search(rest)):
            term = term_of(match[0], left)
            where, anchor = left[term]
            left = {name: place for name, place in left.items() if place[1] != anchor}
            address = f"{app.builder.get_relative_uri(page, where)}#{anchor}"
            link = nodes.reference("", match[0], internal=True, refuri=address)
            link["classes"].append("term")
            link["reftitle"] = means[anchor]
            pieces += [nodes.Text(rest[: match.start()]), link]
            rest = rest[match.end() :]
        if pieces:
            parent = text.parent
            parent.replace(text, [*pieces, nodes.Text(rest)])


def setup(app):
    app.connect("doctree-resolved", link_first_uses)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
