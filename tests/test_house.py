"""What carries the pages: the set-up for Colab, the helpers, and tables of pages."""

import ast
import functools
import re
from pathlib import Path

import pytest

import pages
from test_pages import code, each_page, over, parts, report, run, run_python

HELPERS = pages.NOTEBOOKS / "helpers"

# Colab, and the address of the repository

COLAB = """
import sys, types
for name in ("google.colab", "google.colab.output"):  # JAX asks for the second
    sys.modules[name] = types.ModuleType(name)
sys.modules["google.colab"].output = sys.modules["google.colab.output"]
"""
WHERE = "\nimport os, helpers.reference; print(os.getcwd())"


def for_colab():
    """The part for Colab of the first page."""
    (cells,) = next(each_page())
    return "\n".join(parts(code(cells)[0])[0])


def address_is(folder):
    """An environment in which git looks for the repository in a folder."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{folder.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": pages.repository(),
    }


@over(each_page)
def test_the_part_for_colab_is_the_same_everywhere(cells):
    for cell in code(cells)[:1]:
        source = "\n".join(parts(cell)[0])
        if source != for_colab() or len(parts(cell)[0]) > 20 or "install" in source:
            yield f"{cell}: another part for Colab than on the first page, or long"
        if f'REPOSITORY = "{pages.repository()}"' not in source:
            yield f"{cell}: another address than in _config.yml"


def test_nothing_is_fetched_where_the_helpers_are(tmp_path):
    for start in ("", COLAB):
        source, env = start + for_colab() + WHERE, address_is(tmp_path / "nowhere")
        assert Path(run_python(source, pages.NOTEBOOKS, **env)) == pages.NOTEBOOKS


def test_in_colab_the_folder_is_fetched_once(tmp_path):
    """A second run, and one after a restart, find what the first fetched."""
    content, bare = tmp_path / "content", tmp_path / "bare.git"
    content.mkdir()
    run(["git", "clone", "--quiet", "--bare", pages.ROOT, bare], tmp_path)
    name = pages.repository().rpartition("/")[2]
    fetched, gone = content / name / "notebooks", tmp_path / "nowhere"
    for address, folder in [(bare, content), (gone, content), (gone, fetched)]:
        source, env = COLAB + for_colab() + WHERE, address_is(address)
        assert Path(run_python(source, folder, **env)) == fetched.resolve()


def test_a_failed_fetch_stops_with_one_sentence(tmp_path):
    """Also beside a reader's own ``helpers``, or a folder of the book's name."""
    source, env = COLAB + for_colab(), address_is(tmp_path / "nowhere")
    (tmp_path / "helpers").mkdir()
    for said in ("placeholder, or not reached", "expected a clone of"):
        with pytest.raises(AssertionError, match=said) as stopped:
            run_python(source, tmp_path, **env)
        assert "Traceback" not in str(stopped.value)
        (tmp_path / pages.repository().rpartition("/")[2]).mkdir(exist_ok=True)


def test_every_copy_of_the_address_is_the_one_of_the_settings():
    forms, faults = pages.addresses(pages.repository()), []
    kinds = [f"*.{end}" for end in ("py", "md", "yml", "ipynb", "txt", "toml", "cff")]
    for name in run(["git", "ls-files", *kinds], pages.ROOT).split():
        path = pages.ROOT / name
        for line in path.read_text("utf-8").splitlines() if path.exists() else []:
            ours = "https://" in line and f"/{forms[0].rpartition('/')[2]}" in line
            if ours and not any(form in line for form in forms):
                faults.append(f"{name}: {line.strip()!r}")
    report(faults)


# Helpers: imports run one way, and they are small

BELOW = {room: {room, "data", ""} for room in ("jax", "torch", "data")}
BELOW |= {room: {room, ""} for room in ("show", "exercises", "")}
FRAMEWORKS = {
    "jax": {"jax", "jaxlib", "flax", "optax", "orbax"},
    "torch": {"torch", "torchvision"},
}


def each_helper():
    """``room, file, tree``; what stands beside the rooms is in the room ""."""
    for file in sorted(HELPERS.rglob("*.py")):
        room = ["", *file.relative_to(HELPERS).parts[:-1]][:2][-1]
        yield room, file, ast.parse(file.read_text("utf-8"))


def imported(nodes):
    """Full names: ``from helpers.torch import fit`` is ``helpers.torch.fit``."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (start + alias.name for alias in node.names)


@over(each_helper)
def test_a_helper_imports_only_from_below(room, file, tree):
    name, below = file.relative_to(HELPERS), BELOW.get(room)
    if below is None:
        yield f"{name}: there is no such room"
    for found in imported(ast.walk(tree)):
        first, inner, *_ = [*found.split("."), ""]
        inner = inner if (HELPERS / inner).is_dir() else ""
        hands_on = file == HELPERS / "__init__.py"
        if first == "helpers" and inner not in (below or ()) and not hands_on:
            yield f"{name}: imports {found} from above"


@over(each_helper)
def test_a_helper_knows_at_most_its_own_framework(room, file, tree):
    """``weights`` and data may import one inside a function, when it is needed."""
    foreign = set.union(*FRAMEWORKS.values()) - FRAMEWORKS.get(room, set())
    for found in imported(ast.walk(tree) if room in FRAMEWORKS else tree.body):
        if found.partition(".")[0] in foreign:
            yield f"{file.relative_to(HELPERS)}: imports {found}"
    if "default_device" in file.read_text("utf-8"):
        yield f"{file.relative_to(HELPERS)}: sets a default device, a tax on each call"


def test_helpers_of_no_framework_load_none():
    """Asked of Python itself."""
    source, every = "", set.union(*FRAMEWORKS.values())
    for room, file, _ in each_helper():
        parts = file.relative_to(pages.NOTEBOOKS).with_suffix("").parts
        source += f"import {'.'.join(parts)}\n" if room not in FRAMEWORKS else ""
    source += f"import sys\nprint(*{every} & sys.modules.keys())"
    assert run_python(source, pages.NOTEBOOKS) == ""


@over(each_page)
def test_a_page_reads_helpers_of_its_own_framework(cells):
    other = "torch" if "_jax" in cells[0].page else "jax"
    for cell in code(cells):
        for name in imported(ast.walk(ast.parse(cell.source))):
            if name.startswith(f"helpers.{other}"):
                yield f"{cell}: imports {name}"


def test_the_house_stays_small(request):
    """Limits that do not grow with chapters: a new one saves elsewhere what it adds."""

    def lines(files):
        return sum(file.read_text("utf-8").count("\n") for file in files)

    helpers = {file: room for room, file, _ in each_helper()}
    rooms = [{f.name for f in helpers if helpers[f] == side} for side in FRAMEWORKS]
    assert rooms[0] == rooms[1], "the two rooms have other files"
    by_hand = [f for f, room in helpers.items() if room not in FRAMEWORKS]
    folders = "tools", "book/_ext", "book/drawings"
    tools = [file for f in folders for file in pages.ROOT.glob(f"{f}/*.py")]
    counted = helpers, by_hand, tools, [*Path(__file__).parent.rglob("*.py")]
    found = *map(lines, counted), len(helpers), len(request.session.items)
    limits = 5_000, 3_300, 3_000, 9_000, 50, 1_500
    assert all(n <= most for n, most in zip(found, limits, strict=True)), found


# Where readers look for pages


def text(path):
    return (pages.ROOT / path).read_text("utf-8")


README, BUILT = text("README.md"), text("book/how-this-was-built.md")
BOTH = README + text("CONTRIBUTING.md")


def test_every_page_is_in_all_tables():
    """Of the README, of Colab, of the index; and linked by the chapter before."""
    order, faults = [page for page in pages.toc() if pages.side_of(page)], []
    where = ["README.md", "book/how-this-was-built.md", "book/index.md"]
    for place, page in enumerate(order):
        faults += [f"{w}: no {page}" for w in where if f"{page}.ipynb)" not in text(w)]
        if place >= 2:  # two pages a chapter
            before = pages.read_py(pages.ROOT / f"{order[place - 2]}.py")[-1]
            link = f"]({page.partition('/')[2]}.ipynb)"
            faults += [f"{before}: no {link}"] if link not in before.source else []
    report(faults)


def test_what_readme_and_contributing_name_is_there():
    """Files, commands of make, and the tests that are said to hold a promise."""
    links = re.findall(r"\]\(([^)#:]+)[)#]", BOTH)
    table = BUILT.partition("| | tested in |")[2].partition("\n\n")[0]
    links += re.findall(r"`((?:tests|notebooks)/[^`]+)`", table)
    faults = [f"no {name}" for name in links if not [*pages.ROOT.glob(name)]]
    assert len(links) > 40, "links are written otherwise"
    listed = re.findall(r"(?m)^\s+make (\S+)", run(["make", "help"], pages.ROOT))
    named = {*re.findall(r"`make ([a-z-]+)", BOTH + BUILT)}
    report(faults + [f"make has no {name}" for name in named - {*listed}])
    assert len(README.split()) <= 1_000, "the README is read in a few minutes"


def test_a_measured_figure_stands_in_the_record_that_is_linked_beside_it():
    seen, faults = 0, []
    both = BUILT + text("book/comparison.md")
    for row in re.findall(r"^\|.*\|$", both, flags=re.MULTILINE):
        records = re.findall(r"/blob/main/(benchmarks/results/[^)]+)", row)
        found = re.findall(r"\b\d+\.\d+\b", row.partition("](")[0]) if records else []
        seen += len(found)
        content = "".join(map(text, records)).replace("%", "")
        faults += [f"{n}: not in {records}" for n in found if f" {n} " not in content]
    report(faults)
    assert seen >= 50, "the table of figures is written otherwise"


# What the sources of the book have


@functools.cache
def words(path):
    """A file in one line, without the marks of comments."""
    return " ".join(re.sub(r"(?m)^\s*#(?: |$)", "", text(path)).split())


def test_every_item_of_the_sources_is_on_its_page():
    """As ``sources.txt`` says, which has a line for each."""
    lines, chapters = text("tests/sources.txt").splitlines(), pages.chapters()
    rows, faults = [line.split(" | ") for line in lines if line[0] != "#"], []
    assert len(rows) == 355, "an item is gone"
    for item, page, pattern, what in rows:
        twins = [f"notebooks/{page}_{side}.py" for side in pages.SIDES]
        one = page if "/" in page else f"notebooks/{page}.py"
        for path in twins if page in chapters else [one]:
            if not re.search(pattern, words(path)):
                faults.append(f"{item} is not in {path}: {what} ({pattern})")
    report(faults)
