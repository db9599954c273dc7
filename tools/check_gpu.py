"""Run every page, the unit tests and the benchmark on the GPU, and keep the figures.

    make check-gpu                  (PYTHON=… for another Python, ARGS=--help for more)

Installs nothing and needs no Jupyter: a page is a plain Python script. Each runs in a
process of its own, one after the other; one JSON and one Markdown file come out.
"""

import argparse
import json
import os
import platform
import re
import runpy
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parent.parent
NEEDED = "flax hypothesis jax matplotlib numpy optax pooch pytest requests safetensors"
NEEDED = [*NEEDED.split(), "cloudpickle", "flatbuffers", "joblib", "orbax", "seaborn"]
NEEDED += ["PIL", "huggingface_hub", "psutil", "scipy", "sklearn", "tensorboard"]
NEEDED += ["tokenizers", "torch", "torchvision", "tqdm", "urllib3"]
GPU = {  # what each framework is asked
    "JAX": """import jax; d = jax.devices()[0]; gpu = d.platform == "gpu"
print("sees", d.device_kind if gpu else "none", "|", d.client.platform_version)""",
    "PyTorch": """import torch; gpu = torch.cuda.is_available()
name = torch.cuda.get_device_name() if gpu else "none"
print("sees", name, "|", torch.version.cuda)""",
}


def run(*command, minutes=60):
    """Exit status, seconds and output of a Python process, which keeps no training."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as runs:
        changes = {"RUNS_FOLDER": runs, "TQDM_DISABLE": "1"}
        changes["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else JAX takes most of it
        changes["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")  # as readers compile it
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        options |= {"cwd": ROOT, "env": os.environ | changes, "timeout": 60 * minutes}
        try:
            done = subprocess.run([sys.executable, *map(str, command)], **options)
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            status, output = 124, f"stopped after {minutes} minutes"
    seconds = round(time.perf_counter() - began, 1)
    return {"status": status, "seconds": seconds, "end": output.splitlines()[-30:]}


def measure(page):
    """Run a page to its end, then print the peak of this process's device memory."""
    os.chdir(page.parent)
    sys.path[0] = str(ROOT / "notebooks")
    runpy.run_path(str(page), run_name="__main__")
    peaks = [0]
    if torch := sys.modules.get("torch"):
        peaks.append(torch.cuda.max_memory_allocated())
    if jax := sys.modules.get("jax"):
        statistics = jax.devices()[0].memory_stats() or {}  # a CPU has none
        peaks.append(statistics.get("peak_bytes_in_use", 0))
    print(f"\npeak MiB: {round(max(peaks) / 2**20)}")


def run_page(page):
    """One page, with its peak of device memory."""
    result = run(__file__, "--measure", page.resolve())
    peak = re.search(r"^peak MiB: (\d+)$", "\n".join(result["end"]), re.MULTILINE)
    return {"name": page.stem, **result, "peak_mib": int(peak[1]) if peak else ""}


def needs_jupyter(path):
    """Whether a test imports ``tools/pages.py``, itself or through another file."""
    names = re.findall(r"^(?:import|from) (\w+)", path.read_text("utf-8"), re.MULTILINE)
    files = [ROOT / f / f"{n}.py" for n in names for f in ("tools", "tests/unit")]
    return any(f.name == "pages.py" or (f.exists() and needs_jupyter(f)) for f in files)


def tests():
    """Files of unit tests that read no notebooks, of training and ``make data``."""
    files = sorted((ROOT / "tests" / "unit").glob("test_*.py"))
    files = [file for file in files if not needs_jupyter(file)]
    tools = ROOT / "tests" / "tools"
    return [*files, tools / "test_train_script.py", tools / "test_data.py"]


def run_tests():
    """All of them."""
    any_version = "-o", "filterwarnings="  # a warning of another version fails nothing
    return {"name": "unit tests", **run("-m", "pytest", "-q", *any_version, *tests())}


def run_benchmark(options):
    """The benchmark, with the table and the record that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        command = "-m", "benchmarks.run", "--output", folder, *options.split()
        result = {"name": "benchmark", **run(*command, minutes=240)}
        for path in Path(folder).glob("*.json"):
            result["record"] = json.loads(path.read_text("utf-8"))
            result["table"] = path.with_suffix(".md").read_text("utf-8")
    return result


def machine():
    """The GPU that each framework sees, and versions."""
    found = {}
    for side, question in GPU.items():
        text = "\n".join(run("-c", question)["end"])
        seen = re.search(r"^sees (.+) \| (.+)", text, re.MULTILINE | re.DOTALL)
        gpu, cuda = seen.groups() if seen else ("none", text[-200:])
        found |= {side: gpu, f"CUDA of {side}": " ".join(cuda.split())}
    smi = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.check_output(smi, text=True) if which(smi[0]) else "none"
    found["driver"] = driver.splitlines()[0]
    found |= {"python": platform.python_version(), "date": f"{date.today()}"}
    return found | {p: version(p) for p in ("torch", "jax", "flax", "optax", "numpy")}


def report(record):
    """The record as Markdown."""
    lines = [
        "| | exit status | seconds | peak device memory, MiB |",
        "|---|---|---|---|",
    ]
    for part in record["parts"]:
        cells = [part.get(n, "") for n in ("name", "status", "seconds", "peak_mib")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", *(f"* {name}: {value}" for name, value in record["about"].items())]
    for part in record["parts"]:
        lines += ["", part["table"]] if "table" in part else []
        if part["status"]:
            lines += ["", f"{part['name']} failed:", "", "```", *part["end"], "```"]
    return "\n".join(lines) + "\n"


def arguments():
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, help="only these, and no tests")
    parser.add_argument("--allow-cpu", action="store_true", help="to try this command")
    parser.add_argument("--benchmark", default="", help="its options, as `--pairs 1`")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def keep(record, file):
    """Write the record as JSON and as Markdown."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    file.with_suffix(".md").write_text(report(record), "utf-8")


def main():
    """Ask for the GPU, run everything, and keep each result as soon as it is there."""
    given = arguments()
    if given.measure:
        return measure(given.measure)
    if missing := [name for name in NEEDED if not find_spec(name)]:
        raise SystemExit(f"missing packages: {', '.join(missing)}; in {sys.executable}")
    about = machine()
    seen = ", ".join(f"{side} sees {about[side]}" for side in GPU)
    if not given.allow_cpu and "none" in (about[side] for side in GPU):
        raise SystemExit(f"no GPU that both frameworks see: {seen}")
    pages = given.pages or sorted((ROOT / "notebooks").glob("*_*.py"))
    steps = [lambda page=page: run_page(page) for page in pages]
    if not given.pages:
        steps += [run_tests, lambda: run_benchmark(given.benchmark)]
    name = re.sub(r"\W+", "-", f"gpu-{about['PyTorch']}-{about['date']}".lower())
    record = {"about": about, "parts": []}
    for step in steps:
        record["parts"].append(part := step())
        print(f"{part['name']}: exit status {part['status']}, {part['seconds']} s")
        if part["status"]:
            print("", *part["end"], "", sep="\n")
        keep(record, given.output / name)
    return any(part["status"] for part in record["parts"])


if __name__ == "__main__":
    sys.exit(main())
