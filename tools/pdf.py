"""The book as a PDF, one for each framework: what a browser prints, page after page.

    python tools/pdf.py [jax | torch]

The built book is printed by Chromium and joined by pypdf. A link to another page of the
PDF leads there, and one to a page that is not in it leads to the public book.
"""

import io
import sys
import threading

from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link
from pypdf.generic import Fit, NameObject

import browser
import build_book
import pages
import serve

TARGET = pages.ROOT / "_build" / "pdf"
MARGIN = dict.fromkeys(["top", "bottom"], "18mm") | dict.fromkeys(
    ["left", "right"], "16mm"
)

CHOICE = "sphinx-design-tab-id-framework"  # where book/_static/navigation.js keeps it
HEADINGS = """() => [...document.querySelectorAll('article :is(h2, h3)')].map(
    h => [...h.childNodes].filter(n => !n.className?.includes?.('link'))
        .map(n => n.textContent).join(''))"""


def chosen(side):
    """The pages of a PDF in order: the chapters of a framework, and all others."""
    return [p for p in pages.toc() if pages.side_of(p) in (None, side)]


def printed(chromium, names, address):
    """Each page as a browser prints it: ``{name: (title, headings, bytes)}``."""
    found, page = {}, chromium.new_page(color_scheme="light")
    side = next(filter(None, map(pages.side_of, names)), None)  # for pages of no side
    page.add_init_script(f"localStorage['{CHOICE}'] = '{side}'")
    for name in names:
        page.goto(f"{address}/{name}.html", wait_until="load")
        page.evaluate("window.MathJax?.startup?.promise")
        content = page.pdf(
            format="A4", margin=MARGIN, print_background=True, outline=True, tagged=True
        )
        title = page.title().partition(" — ")[0]
        found[name] = title, page.evaluate(HEADINGS), content
    page.close()
    return found


def sections(part, headings):
    """Headings with their pages; a browser's outline loses blanks where lines wrap."""
    todo = list(part.outline)
    while todo:
        item = todo.pop(0)
        if isinstance(item, list):
            todo = item + todo
            continue
        title = "".join(item.title.split())
        for heading in headings:
            if title.startswith("".join(heading.split())):
                yield heading, part.get_destination_page_number(item)
                break


def joined(parts, address):
    """One PDF of all parts, with their titles as its outline and with its links."""
    writer, starts = PdfWriter(), {}
    for name, (title, headings, content) in parts.items():
        part, starts[name] = PdfReader(io.BytesIO(content)), len(writer.pages)
        writer.append(part, import_outline=False)
        chapter = writer.add_outline_item(title=title, page_number=starts[name])
        for heading, page in sections(part, headings):
            writer.add_outline_item(
                title=heading, page_number=starts[name] + page, parent=chapter
            )
    home = pages.config()["html"]["baseurl"]
    for number, page in enumerate(writer.pages):
        for reference in list(page.get("/Annots", [])):
            action = reference.get_object().get("/A", {})
            url = action.get("/URI", "")
            if not url.startswith(f"{address}/"):
                continue
            path = url.removeprefix(f"{address}/")
            name = path.partition("#")[0].removesuffix(".html")
            if name in starts:
                place = reference.get_object()["/Rect"]
                page["/Annots"].remove(reference)
                link = Link(
                    rect=place,
                    target_page_index=starts[name],
                    fit=Fit.fit_horizontally(),
                )
                writer.add_annotation(number, link)
            else:
                action[NameObject("/URI")] = type(url)(home + path)
    return writer


def main(sides):
    if not (build_book.HTML / "index.html").exists():
        sys.exit("there is no built book to print: `make book` makes it")
    TARGET.mkdir(parents=True, exist_ok=True)
    try:
        path = browser.find()  # before Playwright starts: it may start one of its own
    except LookupError as error:
        sys.exit(str(error))
    with (
        sync_playwright() as playwright,
        serve.server(build_book.HTML, handler=serve.Silent) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://localhost:{server.server_port}"
        chromium = playwright.chromium.launch(
            executable_path=path, args=browser.OPTIONS
        )
        for side in sides or pages.NAMES:
            write(joined(printed(chromium, chosen(side), address), address), side)
        chromium.close()
        server.shutdown()


def write(pdf, side):
    """Put a PDF in its place, whole or not at all."""
    path = TARGET / f"transformers-side-by-side-{side}.pdf"
    draft = path.with_suffix(".draft")
    pdf.write(draft)
    draft.replace(path)
    shown, size = path.relative_to(pages.ROOT), path.stat().st_size / 2**20
    print(f"{shown}: {len(pdf.pages)} pages, {size:.1f} MiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
