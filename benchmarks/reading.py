"""Size and loading time of every page of the built book, in a real browser.

    PYTHONPATH=notebooks:tools python -m benchmarks.reading [--repeats 5]

A page can be read when its text is painted, and used when its links and its scrolling
answer; formulas are set a moment later. Each visit is one of a new reader: nothing is
cached. Times are medians, in milliseconds. A keystroke takes from the event to the end
of the layout: computing, writing what changed, and placing it.
"""

import argparse
import threading
from statistics import median
from urllib.parse import urljoin, urlsplit

from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

import browser
import pages
import serve
from build_book import HTML

TIMES = """async () => {
    const first = kind => performance.getEntriesByType(kind)[0];
    while (!first('paint')) await new Promise(done => setTimeout(done, 20));
    const visit = first('navigation');
    const page = [first('paint').startTime, visit.domInteractive];
    if (!document.querySelector('.math')) return [...page, visit.loadEventEnd];
    await window.MathJax.startup.promise;
    return [...page, performance.now()];
}"""

LISTEN = """kind => {
    window.taken = [];
    let start;
    addEventListener(kind, () => (start = performance.now()), {capture: true});
    addEventListener(kind, () => {
        document.body.getBoundingClientRect();
        taken.push(performance.now() - start);
    });
}"""


def size(page):
    """``(KiB with pictures, KiB of pictures, pictures)`` of a page."""
    path = HTML / f"{page}.html"
    article = BeautifulSoup(path.read_text("utf-8"), "html.parser").select_one(
        "article"
    )
    images = {
        HTML / urlsplit(urljoin(f"{page}.html", image["src"])).path
        for image in article.select("img[src]")
        if not image["src"].startswith("data:")  # that is in the page
    }
    drawn = sum(image.stat().st_size for image in images)
    return (path.stat().st_size + drawn) / 1024, drawn / 1024, len(images)


def visit(chromium, address):
    """Milliseconds until the text is painted, answers, and has its formulas."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address, wait_until="load")
    times = page.evaluate(TIMES)
    context.close()
    return times


def keystrokes(chromium, address):
    """Milliseconds of each of many keys: typed into the playground, and in a map."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/book/playground.html", wait_until="load")
    page.evaluate(LISTEN, "input")
    for start in range(10):
        page.get_by_label("Digits").fill("")
        page.keyboard.type("".join(str((start + 3 * i) % 10) for i in range(16)))
    typed = page.evaluate("taken")
    page.goto(f"{address}/notebooks/encoder_jax.html", wait_until="load")
    page.evaluate(LISTEN, "keydown")
    page.locator("[role=gridcell][tabindex='0']").first.focus()
    for _ in range(5):
        for key in ["ArrowDown"] * 15 + ["ArrowUp"] * 15:
            page.keyboard.press(key)
    moved = page.evaluate("taken")
    page.close()
    return {"a digit in the playground": typed, "an arrow in two maps": moved}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        "| page | KiB with pictures | pictures | painted ms | usable ms | complete ms |"
    )
    print("|---|---|---|---|---|---|")
    with (
        sync_playwright() as playwright,
        serve.server(HTML, handler=serve.Silent) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = playwright.chromium.launch(
            executable_path=browser.find(), args=browser.OPTIONS
        )
        for page in pages.toc():
            address = f"http://localhost:{server.server_port}/{page}.html"
            visits = [visit(chromium, address) for _ in range(options.repeats)]
            times = " | ".join(
                f"{median(values):.0f}" for values in zip(*visits, strict=True)
            )
            total, _, count = size(page)
            print(f"| {page} | {total:.0f} | {count} | {times} |", flush=True)
        print("\n| a key | keys | median ms | largest ms | above 16 ms |")
        print("|---|---|---|---|---|")
        home = f"http://localhost:{server.server_port}"
        for name, times in keystrokes(chromium, home).items():
            late = sum(time > 16 for time in times)
            found = f"{len(times)} | {median(times):.1f} | {max(times):.1f} | {late}"
            print(f"| {name} | {found} |", flush=True)
        chromium.close()
        server.shutdown()


if __name__ == "__main__":
    main()
