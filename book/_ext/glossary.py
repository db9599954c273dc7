"""Sphinx extension: on each page, the first use of a word of the glossary is a link.

The pages stay plain Markdown: the words are found when the book is built. What a word
means is shown when the mouse rests on it. A term that ends with a bracket, ``key (of
attention)``, is ambiguous and is never linked; neither are words of everyday English
(``ORDINARY``), names of chapters after "You need:", nor words of the changelog.
"""

import re
from itertools import groupby

from docutils import nodes
from sphinx import addnodes

CHANGELOG = "book/changelog"
# Words that have an entry, but would be underlined on every page.
ORDINARY = {
    "batch", "block", "buffer", "checkpoint", "clipping", "device", "eager", "element",
    "feature", "greedy", "head", "loss", "mask", "module", "patch", "position", "query",
    "schedule", "seed", "temperature", "tracing", "twin", "update",
}  # fmt: skip
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
        if kind == "term" and not name.endswith(")") and name not in ORDINARY
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
    """Finds the longest term at a place, also in the plural, whole words only.

    The group of a match counts the names, from 1. A line may end inside a term.
    """
    words = [r"\s+".join(map(re.escape, name.split())) for name in names]
    forms = [f"({re.sub('y$', '(?:y|ies)', word)}(?:s|es)?)" for word in words]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w-])", re.IGNORECASE)


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
        joined = []
        for are_texts, group in groupby(parent, lambda n: isinstance(n, nodes.Text)):
            texts = [*group]
            whole = "".join(text.astext() for text in texts) if are_texts else ""
            joined += [nodes.Text(whole)] if are_texts else texts
        parent[:] = joined


def link_first_uses(app, doctree, page):
    known = terms(app.env)
    if not known or app.builder.format != "html":
        return
    glossary = {where for where, _ in known.values()}
    if page in glossary | {CHANGELOG}:
        return
    means = {a: t for where in glossary for a, t in meanings(app.env, where).items()}
    left = dict(sorted(known.items(), key=lambda item: -len(item[0])))
    join_lines(doctree)
    for text in [t for t in doctree.findall(nodes.Text) if is_prose(t)]:
        pieces, rest = [], text.astext()
        while left and (match := pattern(left).search(rest)):
            where, anchor = [*left.values()][match.lastindex - 1]
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
