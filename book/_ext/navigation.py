"""Sphinx extension: one step between the twins, and the way on in one framework.

Every section of a chapter gets a link to the same section of its twin, every chapter a
switch and a line with what can be taken along (Colab, notebook, script), and "next"
and "previous" stay within a framework. All of these are plain links; what
``book/_static/navigation.js`` adds is that the choice is remembered.

A chapter says how many minutes it takes, to read and with what there is to do; the role
``{minutes}`data costs` `` says both of chapters together. Sections whose heading begins
with "Extra: " stand apart, and a script folds each to one line.
"""

import re
import shutil
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.util.docutils import SphinxRole

import blank
import pages
from later import FILL, Later
from pages import FOLDS, NAMES, side_of

NOT_FOUND = """<h1>There is no such page</h1>
<p>It may have been moved or renamed. Begin at the
<a href="{home}book/index.html">map of the chapters</a>, look into the
<a href="{home}book/glossary.html">glossary</a>, or
<a href="{home}search.html">search the book</a>.</p>"""
FOLD_ALL = """
<button type="button" class="unfold-checks pst-js-only">Unfold all checks</button>
<button type="button" class="show-extras pst-js-only">Show all extras</button>"""
PLACEHOLDER = "/github/example/"  # in the address of a repository not yet public
EXTRA = "Extra: "
TURN = "Extra: Your turn"  # blank cells, counted as exercises of the page
QUESTIONS = "Five questions"
BLANKS = "_downloads/exercises"  # notebooks without what their chapter teaches
WORDS, LINES, PICTURES = 170, 10, 3  # that one reads, or looks at, in a minute
EXERCISE, FROM_BLANK = 4, 6  # minutes that an exercise takes, and one from a blank cell


class Html(nodes.Inline, nodes.Element):
    """HTML without a text, so that neither contents nor the search index show it."""


def on_side(page, side):
    """The page of the same chapter on a side."""
    return f"{page.rpartition('_')[0]}_{side}"


def is_cell(node):
    """Is this a code cell with its output?"""
    return isinstance(node, nodes.container) and "cell" in node["classes"]


def minutes(part):
    """How long one reads what is open in a part of a page, roughly."""
    n_words = sum(len(text.astext().split()) for text in part.findall(nodes.paragraph))
    n_lines = n_pictures = 0
    for cell in part.findall(is_cell):
        kinds = {name.removeprefix("tag_") for name in cell["classes"]}
        n_pictures += "figure" in kinds
        if not kinds & FOLDS.keys():
            code = next(cell.findall(nodes.literal_block)).astext()
            n_lines += sum(1 for line in code.splitlines() if line.strip())
    return n_words / WORDS + n_lines / LINES + n_pictures / PICTURES


def with_exercises(part):
    """The same, with the minutes of the exercises that stand there."""
    texts = [text.astext() for text in part.findall(nodes.paragraph)]
    n_exercises = sum(bool(re.match(r"Exercise \d", text)) for text in texts)
    n_blank = sum("tag_your-turn" in cell["classes"] for cell in part.findall(is_cell))
    return minutes(part) + n_exercises * EXERCISE + n_blank * FROM_BLANK


def times(doctree):
    """Minutes to read a page, to do all of it but the extras, and of its extras."""
    parts = {title.astext(): title.parent for title in doctree.findall(nodes.title)}
    extras = [part for title, part in parts.items() if title.startswith(EXTRA)]
    beside = [*extras, *(parts[title] for title in parts if title == QUESTIONS)]
    others = [part for part in extras if not part[0].astext().startswith(TURN)]
    apart = sum(map(with_exercises, others))
    read = minutes(doctree) - sum(map(minutes, beside))
    return read, with_exercises(doctree) - apart, apart


class MinutesRole(SphinxRole):
    def run(self):
        self.env.note_reread()  # any page may have changed
        return [Later(name="minutes", args=[self.text])], []


def fill_minutes(transform, _node, names):
    """``24 (45)`` minutes of chapters, or hours of all; the mean of the twins."""
    chapters = pages.chapters() if names == "all" else names.split()
    twins = [f"notebooks/{name}_{side}" for name in chapters for side in NAMES]
    found = [times(transform.env.get_doctree(page)) for page in twins]
    read, done, _ = (sum(column) / 2 for column in zip(*found, strict=True))
    hours = f"{read / 60:.0f} hours to read, {done / 60:.0f} with exercises"
    return nodes.Text(hours if names == "all" else f"{read:.0f} ({done:.0f})")


def add_links(app, doctree, page):
    """What stands on a chapter besides its text, and its extras made to fold."""
    side = side_of(page)
    if side is None or app.builder.format != "html":
        return
    first, *titles = doctree.findall(nodes.title)
    extras = [t.parent for t in titles if t.astext().startswith(EXTRA)]
    links, (read, done, apart) = to_take_along(app, page), times(doctree)
    line = f"About {read:.0f} minutes to read, {done:.0f} with exercises and questions"
    line += f", {apart:.0f} for the extras." if apart >= 1 else "."
    menu = f"{FOLD_ALL}{''.join(links)}"
    menu = f"<details><summary>Folds and files</summary><div>{menu}</div></details>"
    insert_after(first, f'<span class="minutes">{line}</span>{menu}')
    other = next(name for name in NAMES if name != side)
    twin = app.builder.get_relative_uri(page, on_side(page, other))
    for title in titles:
        title += Html(
            html='<a class="twin-link d-print-none" '
            f'href="{twin}#{title.parent["ids"][0]}" '
            f'aria-label="This section in {NAMES[other]}">{NAMES[other]}</a>'
        )
    for section in extras:
        fold(section)
    for cell in list(doctree.findall(is_cell)):
        if "tag_your-turn" in cell["classes"]:
            insert_after(cell, "<span>To run it:</span>" + "".join(links[:2]))


def insert_after(node, html):
    """A line of links and buttons behind a title or a cell."""
    line = Html(html=f'<div class="take-along d-print-none">{html}</div>')
    node.parent.insert(node.parent.index(node) + 1, line)


def to_take_along(app, page):
    """Links to Colab and to files; they say if the repository is not public."""
    settings = pages.config()["repository"]
    colab = pages.addresses(settings["url"])[1]
    top = app.builder.get_relative_uri(page, "x").removesuffix("x.html")
    to_fill = f"{top}{BLANKS}/{page.removeprefix('notebooks/')}.ipynb"
    address = f"{colab}/blob/{settings['branch']}/{page}.ipynb"
    public = f'<a href="{address}">Open in Colab</a>'
    if PLACEHOLDER in colab:
        public = f"<span>{public} (once public)</span>"
    files = {f"{top}_sources/{page}.ipynb": "Download .ipynb"}
    files |= {f"{top}_sources/{page}.py": "Download .py", to_fill: "Blank .ipynb"}
    return [public, *(f'<a href="{a}" download>{w}</a>' for a, w in files.items())]


def fold(section):
    """Mark an extra, and put all but its heading into a part that can be folded."""
    n = round(with_exercises(section))
    time = f"{n} minutes" if n > 1 else "a minute"
    line = Html(html=f'<p class="extra-line d-print-none">About {time}.</p>')
    section["classes"].append("extra")
    title, *rest = section.children
    section.children = []
    section.extend([title, line, nodes.container("", *rest, classes=["extra-body"])])


def neighbours(page, step, order):
    """The pages before (``step = -1``) or after a page.

    A chapter's neighbours are on its own side. Beside the chapters a page of no side
    has two neighbours, one of each side; the reader's choice shows one of them.
    """
    side, place = side_of(page), order.index(page) + step
    while 0 <= place < len(order):
        found = order[place]
        if side_of(found) in (None, side):
            return [found]
        if side is None:
            return [on_side(found, name) for name in NAMES]
        place += step
    return []


def add_context(app, page, _template, context, _doctree):
    """What the templates of ``book/_templates`` show."""
    side, uri = side_of(page), app.builder.get_relative_uri
    context["framework"] = side
    context["frameworks"] = [
        {"key": key, "name": name, "url": side and uri(page, on_side(page, key))}
        for key, name in NAMES.items()
    ]
    order = [p for p in app.config.external_site_map if p in app.env.found_docs]
    for key, step in {"prev": -1, "next": 1}.items():
        found = neighbours(page, step, order) if page in order else []
        context[f"{key}_pages"] = [
            {"link": uri(page, other), "title": app.env.titles[other].astext()}
            for other in found
        ]
        context[key] = context[f"{key}_pages"][0] if found else None


def no_launch_button(app, page, *_):
    """Colab opens notebooks only, so pages of another kind get no button for it."""
    if not page.startswith("notebooks/"):
        app.env.metadata[page].pop("kernelspec", None)


def name_pages(app, env):
    """Titles that tell the twins apart, in browser tabs and in search results."""
    for page, entry in app.config.external_site_map.items():
        if side_of(page) and entry.title:
            env.titles[page] = env.longtitles[page] = nodes.title(text=entry.title)


def name_chapters(app, doctree, _page):
    """A link that shows the name of a chapter's file shows its title instead."""
    for link in doctree.findall(nodes.reference):
        page = f"notebooks/{link.astext().removeprefix('notebooks/')}"
        if side_of(page) and page in app.env.titles:
            inner = link[0] if isinstance(link[0], nodes.Element) else link
            inner[:] = [nodes.Text(app.env.titles[page].astext())]


def tell_the_home(_app, config):
    """The address of the book, written once, also for previews and ``404.html``."""
    config.ogp_site_url = config.html_baseurl
    home = urlsplit(config.html_baseurl).path or "/"
    config.notfound_urls_prefix = home
    body = NOT_FOUND.format(home=escape(home))
    config.notfound_context = {"title": "There is no such page", "body": body}


def copy_files(app, error):
    """The ``.py`` of every page, beside the ``.ipynb`` that Sphinx copies; blanks."""
    if error is None and app.builder.format == "html":
        for page in filter(side_of, app.env.found_docs):
            target = Path(app.outdir) / "_sources" / f"{page}.py"
            shutil.copyfile(Path(app.srcdir) / f"{page}.py", target)
        shutil.rmtree(Path(app.outdir) / BLANKS, ignore_errors=True)
        blank.write(Path(app.outdir) / BLANKS)


def visit(writer, node):
    writer.body.append(node["html"])


def setup(app):
    app.add_node(Html, html=(visit, lambda *_: None))
    app.add_role("minutes", MinutesRole())
    FILL["minutes"] = fill_minutes
    app.connect("config-inited", tell_the_home)
    app.connect("env-check-consistency", name_pages)
    app.connect("doctree-resolved", add_links)
    app.connect("doctree-resolved", name_chapters)
    app.connect("html-page-context", add_context, priority=900)
    app.connect("html-page-context", no_launch_button, priority=100)
    app.connect("build-finished", copy_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
