"""Sphinx extension: one step between the twins, and the way on in one framework.

Every section of a chapter gets a link to the same section of its twin, every chapter a
switch and a line with what can be taken along (Colab, notebook, script), and "next"
and "previous" stay within a framework. All of these are plain links; what
``book/_static/navigation.js`` adds is that the choice is remembered.

A chapter says how many minutes it takes. Sections whose heading begins with "Extra: "
do not count among them: a script folds each to one line, which says how long it is.
Neither do the five questions. No Python runs in the book: where it is the reader's turn
to write a cell, links to Colab and to the notebook stand below.
"""

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes

import blank
import pages
from pages import NAMES, side_of
from sync import FOLDS

NOT_FOUND = """<h1>There is no such page</h1>
<p>It may have been moved or renamed. Begin at the
<a href="{home}book/index.html">map of the chapters</a>, look into the
<a href="{home}book/glossary.html">glossary</a>, or
<a href="{home}search.html">search the book</a>.</p>"""


PLACEHOLDER = "/github/example/"  # in the address of a repository not yet public
# A heading that begins so is of an extra.
EXTRA = "Extra: "
QUESTIONS = "Five questions"
BLANKS = "_downloads/exercises"  # notebooks without what their chapter teaches
WORDS, LINES, PICTURES = 170, 10, 3  # that one reads, or looks at, in a minute


def on_side(page, side):
    """The page of the same chapter on a side."""
    return f"{page.rpartition('_')[0]}_{side}"


def other_side(side):
    return next(name for name in NAMES if name != side)


def colab_address(page):
    """Where Colab opens the notebook of a page, from the repository in the settings."""
    settings = pages.config()["repository"]
    return (
        f"{pages.addresses(settings['url'])[1]}/blob/{settings['branch']}/{page}.ipynb"
    )


def neighbours(page, step, order):
    """The pages before (``step = -1``) or after a page.

    A chapter's neighbours are on its own side. Beside the chapters a page of no side
    has two neighbours, one of each side; the reader's choice shows one of them.
    """
    side, place = side_of(page), order.index(page) + step
    while 0 <= place < len(order):
        found = order[place]
        if side_of(found) is None:
            return [found]
        if side is None:
            return [on_side(found, name) for name in NAMES]
        if side_of(found) == side:
            return [found]
        place += step
    return []


class TwinLink(nodes.Inline, nodes.Element):
    """In the heading of a section: to the same section of the twin. Has no text of its
    own, so that neither the contents of the page nor the search index show it."""


class TakeAlong(nodes.Inline, nodes.Element):
    """Below the title of a chapter: how long it takes, Colab, and files."""


class ExtraLine(nodes.Inline, nodes.Element):
    """Below the heading of an extra: how long it takes, and what unfolds it."""


def visit_twin_link(writer, node):
    other = NAMES[node["side"]]
    writer.body.append(
        f'<a class="twin-link d-print-none" href="{node["refuri"]}" '
        f'aria-label="This section in {other}">{other}</a>'
    )


def visit_take_along(writer, node):
    links = "".join(linked(*each) for each in node["links"])
    first = f'<span class="minutes">{node["time"]}</span>' + "".join(
        f'<button type="button" class="{name} pst-js-only">{words}</button>'
        for name, words in node["buttons"].items()
    )
    first = f'<span class="first">{first}</span>'
    writer.body.append(f'<p class="take-along d-print-none">{first}{links}</p>')


def linked(label, address, text):
    """A link to something to take along; it says if the repository is not public."""
    download = " download" if label.startswith(".") else ""
    link = f'<a href="{address}"{download}>{text}</a>'
    return f"<span>{link} (once public)</span>" if PLACEHOLDER in address else link


def visit_extra_line(writer, node):
    writer.body.append(f'<p class="extra-line d-print-none">About {node["time"]}.</p>')


def depart(writer, node):
    """Everything was written on the way in."""


def skip(writer, node):
    raise nodes.SkipNode


def name_pages(app, env):
    """Titles that tell the twins apart, in browser tabs and in search results."""
    for page, entry in env.app.config.external_site_map.items():
        if side_of(page) and entry.title:
            env.titles[page] = env.longtitles[page] = nodes.title(text=entry.title)


def add_links(app, doctree, page):
    side = side_of(page)
    if side is None or app.builder.format != "html":
        return
    twin = app.builder.get_relative_uri(page, on_side(page, other_side(side)))
    first, *titles = doctree.findall(nodes.title)
    extras = [t.parent for t in titles if t.astext().startswith(EXTRA)]
    core, *beside = times(doctree)
    time = in_words(core, *beside)
    checks = [n for n in doctree.findall(is_cell) if "tag_check" in n["classes"]]
    buttons = {
        "unfold-checks": checks and f"Unfold {all_of(checks, 'check')}",
        "show-extras": extras and f"Show {all_of(extras, 'extra')}",
    }
    buttons = {name: words for name, words in buttons.items() if words}
    take_along = TakeAlong(links=files(app, page), time=time, buttons=buttons)
    first.parent.insert(first.parent.index(first) + 1, take_along)
    for title in titles:
        refuri = f"{twin}#{title.parent['ids'][0]}"
        title += TwinLink(refuri=refuri, side=other_side(side))
    for section in extras:
        fold(section)
    for cell in list(doctree.findall(is_cell)):
        if "tag_your-turn" in cell["classes"]:
            links = TakeAlong(links=files(app, page)[:2], time="To run it:", buttons={})
            cell.parent.insert(cell.parent.index(cell) + 1, links)


def all_of(things, name):
    """``all 3 checks``, or ``the check``."""
    return f"all {len(things)} {name}s" if len(things) > 1 else f"the {name}"


def minutes(part):
    """How long one reads what is open in a part of a page, roughly."""
    n_words = sum(len(text.astext().split()) for text in part.findall(nodes.paragraph))
    n_lines = n_pictures = 0
    for cell in part.findall(is_cell):
        kinds = {name.removeprefix("tag_") for name in cell["classes"]}
        n_pictures += "figure" in kinds
        if not kinds & FOLDS.keys():
            (code, *_) = cell.findall(nodes.literal_block)
            n_lines += sum(1 for line in code.astext().splitlines() if line.strip())
    return n_words / WORDS + n_lines / LINES + n_pictures / PICTURES


def times(doctree):
    """Minutes of a page's core, of its extras, and of its questions."""
    sections = [title.parent for title in doctree.findall(nodes.title)]
    extras = [n for n in sections if n[0].astext().startswith(EXTRA)]
    questions = [n for n in sections if n[0].astext() == QUESTIONS]
    beside = [sum(map(minutes, found)) for found in (extras, questions)]
    return minutes(doctree) - sum(beside), *beside


def is_cell(node):
    """Is this a code cell with its output?"""
    return isinstance(node, nodes.container) and "cell" in node["classes"]


def in_words(core, extras, questions):
    """``About 24 minutes, 7 for the extras, 3 for the questions``."""
    beside = {"extras": extras, "questions": questions}
    more = [f", {max(1, round(n))} for the {what}" for what, n in beside.items() if n]
    return f"About {round(core)} minutes{''.join(more)}"


def fold(section):
    """Mark an extra, and put all but its heading into a part that can be folded."""
    n = round(minutes(section))
    line = ExtraLine(time=f"{n} minutes" if n > 1 else "a minute")
    section["classes"].append("extra")
    title, *rest = section.children
    body = nodes.container("", *rest, classes=["extra-body"])
    section.children = []
    section.extend([title, line, body])


def files(app, page):
    """``(label, address, text)`` of what a reader can take along."""
    top = app.builder.get_relative_uri(page, "x").removesuffix("x.html")
    to_fill = f"{top}{BLANKS}/{page.removeprefix('notebooks/')}.ipynb"
    return [
        ("colab", colab_address(page), "Open in Colab"),
        (".ipynb", f"{top}_sources/{page}.ipynb", "Download .ipynb"),
        (".py", f"{top}_sources/{page}.py", "Download .py"),
        (".blank", to_fill, "Blank .ipynb"),
    ]


def add_context(app, page, _template, context, _doctree):
    """What the templates of ``book/_templates`` show."""
    side = side_of(page)
    context["framework"] = side
    context["frameworks"] = [
        {
            "key": key,
            "name": name,
            "url": side and app.builder.get_relative_uri(page, on_side(page, key)),
        }
        for key, name in NAMES.items()
    ]
    order = [p for p in app.config.external_site_map if p in app.env.found_docs]
    for key, step in {"prev": -1, "next": 1}.items():
        found = neighbours(page, step, order) if page in order else []
        context[f"{key}_pages"] = [
            {
                "link": app.builder.get_relative_uri(page, other),
                "title": app.env.titles[other].astext(),
            }
            for other in found
        ]
        context[key] = context[f"{key}_pages"][0] if found else None


def name_chapters(app, doctree, _page):
    """A link that shows the name of a chapter's file shows its title instead."""
    titles = app.env.titles
    for link in doctree.findall(nodes.reference):
        page = f"notebooks/{link.astext().removeprefix('notebooks/')}"
        if side_of(page) and page in titles:
            inner = link[0] if isinstance(link[0], nodes.Element) else link
            inner[:] = [nodes.Text(titles[page].astext())]


def no_launch_button(app, pagename, *_):
    """Colab opens notebooks only, so pages of another kind get no button for it."""
    if not pagename.startswith("notebooks/"):
        app.env.metadata[pagename].pop("kernelspec", None)


def tell_the_home(app, config):
    """The address of the book, written once, also for previews and ``404.html``."""
    config.ogp_site_url = config.html_baseurl
    home = urlsplit(config.html_baseurl).path or "/"
    config.notfound_urls_prefix = home
    body = NOT_FOUND.format(home=home)
    config.notfound_context = {"title": "There is no such page", "body": body}


def copy_scripts(app, error):
    """The ``.py`` of every page, beside the ``.ipynb`` that Sphinx copies; blanks."""
    if error is None and app.builder.format == "html":
        for page in filter(side_of, app.env.found_docs):
            target = Path(app.outdir) / "_sources" / f"{page}.py"
            shutil.copyfile(Path(app.srcdir) / f"{page}.py", target)
        shutil.rmtree(Path(app.outdir) / BLANKS, ignore_errors=True)
        blank.write(Path(app.outdir) / BLANKS)


def setup(app):
    app.add_node(TwinLink, html=(visit_twin_link, depart), latex=(skip, None))
    app.add_node(TakeAlong, html=(visit_take_along, depart), latex=(skip, None))
    app.add_node(ExtraLine, html=(visit_extra_line, depart), latex=(skip, None))
    app.connect("config-inited", tell_the_home)
    app.connect("env-check-consistency", name_pages)
    app.connect("doctree-resolved", add_links)
    app.connect("doctree-resolved", name_chapters)
    app.connect("html-page-context", add_context, priority=900)
    app.connect("html-page-context", no_launch_button, priority=100)
    app.connect("build-finished", copy_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
