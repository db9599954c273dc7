"""What both endings of ``scripts/model_*.py`` share: a call, its text, its answer."""

import argparse
from pathlib import Path

SIZES = {
    "n_blocks": 2, "n_heads": 4, "f": 256, "max_length": 128, "positions": "rotary",
    "norm_first": True, "activation": "gelu",
}  # fmt: skip


def arguments():
    """What a call may say."""
    parser = argparse.ArgumentParser(description="Train a language model on a text.")
    parser.add_argument("text", nargs="?", default=__file__, help="a file in UTF-8")
    parser.add_argument("--folder", default="run", help="of checkpoints")
    usual = {"updates": 100, "learning-rate": 3e-3, "weight-decay": 0.1}
    for name, value in {**usual, "batch-size": 8}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--prompt", help="by default how the text begins")
    return parser


def read_text(parser, options, n):
    """The number of each character of the text, all numbers by name, the prompt."""
    try:
        text = Path(options.text).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"expected a text in UTF-8: {error}")
    prompt, length = options.prompt or text[:16], SIZES["max_length"]
    if unknown := set(prompt) - set(text):
        parser.error(f"the text has no {sorted(unknown)}, which the prompt has")
    if len(text) <= length or options.batch_size % n:
        parser.error(
            f"expected a text of more than {length} characters and a batch that {n} "
            f"devices share, got {len(text)}, {options.batch_size}"
        )
    numbers = {character: n for n, character in enumerate(sorted(set(text)))}
    return [numbers[character] for character in text], numbers, prompt


def write_on(model, prompt, numbers):
    """Print the prompt and what the model writes after it."""
    written = generate(model, [[numbers[x] for x in prompt]], 100, temperature=0.8)
    print(prompt + "".join([*numbers][n] for n in written[0].tolist()))
