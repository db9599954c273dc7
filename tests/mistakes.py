"""Sixty planted mistakes in the code that readers copy, and the test that finds each.

By hand, after a change of the code or of the tests:

    python tests/mistakes.py             # all of them
    python tests/mistakes.py rotary fit  # those whose line has one of these words

Each is made in a copy of the book, where its test must fail; in the copy without a
mistake, all the tests must pass. A mistake is a line of the table: what is wrong, the
framework ("both": code without one), the definition, one place in it and what replaces
it, and the test. The definition is sought in the helpers of the framework, in other
helpers, and then on the pages; it may have several names, separated by spaces.
"""

import ast
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path

import pytest

MISTAKES = [
    # Attention
    ("scores are not divided by √d", "torch", "attention",
     "(q / math.sqrt(q.shape[-1]))", "q",
     "test_attention.py::test_attention_equals_the_reference[()-None-torch]"),
    ("a query that may look nowhere looks everywhere", "torch", "masked_softmax",
     "torch.where(mask, torch.softmax(scores, dim=-1), 0)",
     "torch.softmax(scores, dim=-1)",
     "test_attention.py::test_outputs_and_gradients_do_not_depend_on_who_computes_them"
     "[blind rows-all-torch]"),
    ("a query that sees nothing keeps what the fused kernel gives it", "torch",
     "fused_attention",
     "torch.where(seen, framework_attention(q, k, v, mask | ~seen), 0)",
     "framework_attention(q, k, v, mask | ~seen)",
     "test_attention.py::test_outputs_and_gradients_do_not_depend_on_who_computes_them"
     "[blind rows-all-torch]"),
    ("features are dealt to the heads in turn", "torch", "MultiHeadAttention",
     "self.n_heads, m // self.n_heads)", "m // self.n_heads, self.n_heads).mT",
     "test_attention.py::test_multi_head_attention_equals_the_reference[None-None-torch]"),
    ("cross-attention takes keys and values from the queries' side", "torch",
     "MultiHeadAttention", 'self.project(context, "kv")', 'self.project(x, "kv")',
     "test_attention.py::test_multi_head_attention_equals_the_reference[(7,)-11-torch]"),
    ("the mask is the other way round", "jax", "masked_softmax",
     "jnp.where(mask, scores,", "jnp.where(~mask, scores,",
     "test_attention.py::test_attention_equals_the_reference[(2, 3)-(1, 3, 5, 7)-jax]"),
    ("the causal mask shows the next position", "jax", "with_causal",
     "k.shape[-2], dtype=bool)", "k.shape[-2], 1, dtype=bool)",
     "test_attention.py::test_outputs_and_gradients_do_not_depend_on_who_computes_them"
     "[no mask-causal-jax]"),
    ("heads are merged without moving their axis", "jax", "merge_heads",
     "values.swapaxes(1, 2).reshape(", "values.reshape(",
     "test_attention.py::test_multi_head_attention_equals_the_reference[None-None-jax]"),
    ("weights are drawn by the size of the output", "jax", "UNIFORM",
     '"fan_in"', '"fan_out"',
     "test_attention.py::test_a_new_layer_attends_almost_evenly[jax]"),
    # The encoder block
    ("dropout comes before the activation", "torch", "FeedForward",
     "self.dropout(self.activation(self.linear1(x)))",
     "self.activation(self.dropout(self.linear1(x)))",
     "test_encoder.py"
     "::test_dropout_in_the_net_is_between_activation_and_second_layer[torch]"),
    ("pre-norm uses its first norm twice", "torch", "EncoderBlock",
     "self.ffn(self.norm2(x))", "self.ffn(self.norm1(x))",
     "test_encoder.py::test_a_block_equals_the_reference[pre-relu-torch]"),
    ("only the first block gets the mask", "torch", "Encoder",
     "block(x, mask, **options)",
     "block(x, mask if block is self.blocks[0] else None, **options)",
     "test_encoder.py::test_padded_positions_have_no_effect_in_any_layer"
     "[10000.0-post-torch]"),
    ("maps are made with dropout", "torch", "attention_maps",
     "with without_dropout(model), torch.no_grad():", "with torch.no_grad():",
     "test_encoder.py::test_the_maps_are_those_of_a_model_without_dropout[torch]"),
    ("the norm is on the branch, not on the sum", "jax", "EncoderBlock",
     "self.norm1(x + self.dropout(values))", "x + self.norm1(self.dropout(values))",
     "test_encoder.py::test_a_block_equals_the_reference[post-relu-jax]"),
    # Positions
    ("sine and cosine of a pair have different frequencies", "torch",
     "sinusoidal_positions", "(i - i % 2) / m", "i / m",
     "unit/test_positions.py::test_both_sides_add_the_table_of_the_reference[23-torch]"),
    ("values are rotated, keys are not", "torch", "RotaryAttention",
     'if part == "v"', 'if part == "k"',
     "unit/test_fused.py::test_rotary_layers_rotate_the_parts_they_are_asked_for[torch]"),
    ("a reflection in place of a rotation", "jax", "rotary",
     "even * sin + odd * cos", "even * sin - odd * cos",
     "unit/test_positions.py"
     "::test_rotary_multiplies_complex_numbers_by_the_phase_of_a_position[2-5-jax]"),
    ("rotary positions forget where the cache ends", "jax", "RotaryAttention",
     "rotary(x, offset)", "rotary(x)",
     "test_decoder.py::test_logits_with_a_cache_are_those_without"
     "[[5, 1, 5]-rotary-jax]"),
    ("learned positions count from the end of the table", "jax", "LearnedPositions",
     "self.table[: x.shape[1]]", "self.table[-x.shape[1] :]",
     "unit/test_positions.py"
     "::test_positions_are_added_to_each_sequence_from_the_start[LearnedPositions-jax]"),
    # Losses and training
    ("each token is predicted from itself", "torch", "next_token",
     "tokens[:, 1:]", "tokens[:, :-1]",
     "test_decoder.py::test_the_loss_is_the_mean_over_real_tokens[torch]"),
    ("gradients of earlier updates stay", "torch", "update",
     "optimizer.zero_grad()", "pass",
     "test_reverse.py::test_updates_are_those_of_the_optimizer_of_the_framework"
     "[inf-0.5-torch]"),
    ("training is without dropout", "torch", "train_epoch",
     "model.train()", "model.eval()",
     "test_reverse.py::test_dropout_draws_new_masks_in_every_update[0.4-torch]"),
    ("padding counts in the mean", "jax", "next_token",
     "jnp.where(real, losses, 0).sum() / real.sum()", "losses.mean()",
     "test_decoder.py::test_the_loss_is_the_mean_over_real_tokens[jax]"),
    ("the softmax is over the batch, not over the set", "jax", "odd_one_out",
     "log_softmax(logits, axis=-1)", "log_softmax(logits, axis=0)",
     "unit/test_train.py::test_the_odd_one_is_the_class_of_a_set[jax]"),
    ("each gradient is clipped by itself", "jax", "make_optimizer",
     "optax.clip_by_global_norm(", "optax.clip(",
     "test_reverse.py::test_updates_are_those_of_the_optimizer_of_the_framework"
     "[0.3-0.0-jax]"),
    ("training is without dropout", "jax", "fit",
     "model.train()", "model.eval()",
     "test_reverse.py::test_dropout_draws_new_masks_in_every_update[0.4-jax]"),
    ("the last weights are kept, not the best", "jax", "fit",
     '(scores["accuracy"], -scores["loss"]) > best', "True",
     "test_reverse.py::test_the_weights_with_the_highest_accuracy_are_kept[jax]"),
    ("evaluate gives a small last batch the weight of a full one", "torch",
     "evaluate", "weights=count", "weights=None",
     "test_reverse.py::test_evaluate_is_the_mean_over_all_examples[torch]"),
    ("the first update has a rate of 0", "both", "warmup_cosine",
     "(step + 1) / warmup", "step / warmup",
     "test_reverse.py::test_schedules_equal_values_computed_by_hand"),
    ("the cosine starts at the first update, not at the peak", "both", "warmup_cosine",
     "max(0, step - top) / (total - top)", "step / total",
     "test_reverse.py::test_schedules_equal_values_computed_by_hand"),
    ("every epoch has the same order", "both", "shuffled",
     "default_rng([settings.seed, epoch])", "default_rng([settings.seed])",
     "test_reverse.py::test_batches_and_random_numbers_follow_from_seed_and_epoch_alone"),
    ("labels of the reverse task are not reversed", "both", "reverse_data",
     "x[:, ::-1]", "x",
     "test_reverse.py::test_labels_are_the_sequences_from_their_end"),
    ("the others of a set are of the odd one's class", "both", "draw_sets",
     "which[odd]] = -1", "which[odd]] = 2",
     "unit/test_sets.py::test_classes_are_equally_likely_whatever_their_size"),
    # Language models and generation
    ("a language model sees what it predicts", "jax", "LanguageModel",
     '"is_causal": self.causal', '"is_causal": False',
     "test_decoder.py::test_logits_before_a_changed_token_keep_their_bits[jax]"),
    ("a high temperature sharpens", "torch", "next_token_probabilities",
     "/ temperature", "* temperature",
     "test_decoder.py::test_probabilities_are_those_of_the_papers"
     "[2.5-None-None-torch]"),
    ("top-k keeps one token more", "jax", "next_token_probabilities",
     "< top_k", "<= top_k",
     "test_decoder.py::test_probabilities_are_those_of_the_papers"
     "[1.0-4-None-jax]"),
    ("top-p drops the token that crosses the bound", "jax", "next_token_probabilities",
     "jnp.cumsum(p, axis=-1) - p", "jnp.cumsum(p, axis=-1)",
     "test_decoder.py::test_probabilities_are_those_of_the_papers"
     "[1.0-None-0.5-jax]"),
    ("new keys overwrite the first ones", "torch", "attend_and_keep",
     "keys[:, :, start:stop] = k", "keys[:, :, : stop - start] = k",
     "test_decoder.py::test_logits_with_a_cache_are_those_without"
     "[[5, 1, 5]-learned-torch]"),
    ("padding before a short prompt counts as positions", "torch", "advance",
     "(columns - first)", "(columns + 0 * first)",
     "test_decoder.py::test_rows_of_different_lengths_have_the_logits_of_rows_alone"
     "[learned-torch]"),
    ("a text goes on after its end", "torch", "continue_texts",
     "torch.where(done, end, drawn)", "drawn",
     "test_decoder.py::test_after_its_end_a_text_has_only_ends[torch]"),
    ("every seed draws the same text", "jax", "continue_texts",
     "jax.random.key(seed)", "jax.random.key(0)",
     "test_decoder.py::test_texts_follow_from_the_seed[jax]"),
    # Translation
    ("padding of the source is visible", "torch", "Translator",
     "(source >= 0)", "(source >= -1)",
     "test_translation.py::"
     "test_later_tokens_change_no_bit_and_padding_changes_no_logits[torch]"),
    ("beams change places, their caches do not", "torch", "search_beams",
     "rows * width + beam", "rows * width + 0 * beam",
     "test_translation.py"
     "::test_log_probabilities_are_those_of_the_texts_that_are_found[torch]"),
    ("a finished translation pays for what follows", "jax", "best_continuations",
     "jnp.where((last == end)[..., None], only_end, log_p)", "log_p",
     "test_translation.py::test_a_finished_translation_keeps_its_probability[jax]"),
    ("cross-attention has no norm", "jax", "DecoderBlock",
     "query = self.cross_norm(x)", "query = x",
     "test_translation.py::test_a_block_equals_the_decoder_layer_of_pytorch"
     "[pre-jax]"),
    # The Transformer of today, and published weights
    ("query heads share keys in turn, not in groups", "torch", "fused",
     "x.repeat_interleave(n, dim=1)", "x.repeat(1, n, 1, 1)",
     "test_today.py::test_grouped_heads_are_heads_with_repeated_keys[mask-torch]"),
    ("keys use the norm of the queries", "jax", "project",
     "layer.k_norm(k)", "layer.q_norm(k)",
     "test_today.py::test_the_tiny_checkpoints_have_the_logits_that_were_stored"
     "[qwen3-jax]"),
    ("gate and up are swapped", "jax", "SwiGLU",
     "silu(self.gate(x)) * self.up(x)", "silu(self.up(x)) * self.gate(x)",
     "test_today.py::test_the_tiny_checkpoints_have_the_logits_that_were_stored"
     "[llama-jax]"),
    ("weights of the chosen experts do not sum to 1", "jax", "MixtureOfExperts",
     "weights / weights.sum(axis=-1, keepdims=True)", "weights",
     "test_today.py::test_a_mixture_is_the_weighted_sum_of_the_chosen_experts"
     "[2-jax]"),
    ("queries and keys of GPT-2 are swapped", "both", "our_names",
     'enumerate("qkv")', 'enumerate("kqv")',
     "test_today.py::test_the_tiny_checkpoints_have_the_logits_that_were_stored"
     "[gpt2-torch]"),
    ("PyTorch's matrices are not transposed", "both", "parameters",
     "isinstance(module, Linear) and param.ndim == 2", "False",
     "unit/test_weights.py::test_both_sides_have_the_same_names_and_shapes"),
    # LoRA and classes of texts
    ("a merged adapter is not scaled", "torch", "LoRALinear",
     "self.scale * (self.lora_a @ self.lora_b).T", "(self.lora_a @ self.lora_b).T",
     "test_finetune.py"
     "::test_merged_models_compute_the_same_and_have_the_old_names[torch]"),
    ("a new adapter changes the model", "jax", "LoRALinear",
     "jnp.zeros((rank, n_out))", "jnp.ones((rank, n_out))",
     "test_finetune.py::test_before_training_an_adapter_changes_no_output[jax]"),
    ("classes are read at the padding", "torch", "TextClassifier",
     "(tokens >= 0)", "(tokens >= -1)",
     "test_finetune.py::test_classes_are_read_at_the_last_token[torch]"),
    # Masked language models
    ("the loss is a mean over all tokens", "torch", "masked_token",
     "losses / n", "losses / labels.numel()",
     "test_masked.py::test_the_loss_is_the_mean_of_minus_ln_p_where_asked[torch]"),
    ("segments are ignored", "jax", "MaskedLM",
     "self.embed_norm(x + self.segments(segments))", "self.embed_norm(x)",
     "test_masked.py::test_segments_and_places_count[bert-jax]"),
    ("no token is replaced by a random one", "both", "mask_tokens",
     "[way < 0.8, way < 0.9]", "[way < 0.8, way < 0.8]",
     "test_masked.py::test_the_share_is_asked_for_and_of_it_80_10_10"),
    # Pictures, and sequences of one's own
    ("patches are cut column by column", "torch", "cut_patches",
     "permute(0, 1, 3, 2, 4, 5)", "permute(0, 3, 1, 2, 4, 5)",
     "test_vision.py"
     "::test_patches_are_read_row_by_row_and_equal_a_convolution[torch]"),
    ("the class token stands behind the patches", "jax", "VisionTransformer",
     "[token, x]", "[x, token]",
     "test_vision.py::test_the_model_equals_that_of_torchvision[jax]"),
    ("the mean is over padding too", "jax", "SequenceClassifier",
     "real.sum(1)[:, None]", "real.shape[1]",
     "test_data.py::test_the_classifier_equals_the_reference[jax]"),
]  # fmt: skip

ROOT = Path(__file__).parents[1]
FOLDERS = "notebooks", "tests", "tools", "scripts", "book/_ext"
FILES = "pyproject.toml", "conftest.py", "_toc.yml", "_config.yml"
HELPERS = "helpers/data/*.py", "helpers/*.py"  # no framework


def spans(text, names, old):
    """First and last line of each definition of these names that has the code once."""
    for node in ast.walk(ast.parse(text)) if old in text else ():
        targets = [getattr(x, "id", None) for x in getattr(node, "targets", ())]
        if {getattr(node, "name", None), *targets} & {*names}:
            first, last = node.lineno - 1, node.end_lineno
            if "\n".join(text.split("\n")[first:last]).count(old) == 1:
                yield first, last


def plant(tree, side, names, old, new):
    """Make a mistake in the tree: the files changed, and their texts as they were."""
    sides = ("jax", "torch") if side == "both" else (side,)
    own = [f"helpers/{side}/*.py"] if side != "both" else []
    for patterns in [*own, *HELPERS, " ".join(f"*_{name}.py" for name in sides)]:
        before = {}
        for path in chain(*map((tree / "notebooks").glob, patterns.split())):
            text = path.read_text("utf-8")
            for first, last in spans(text, names.split(), old):
                lines = before.setdefault(path, text).split("\n")
                lines[first:last] = ["\n".join(lines[first:last]).replace(old, new)]
                path.write_text("\n".join(lines), "utf-8")
        if before:
            return before
    return {}


def run(tree, tests, log):
    """Run tests in this process, and end it with the exit code of pytest."""
    os.chdir(tree)
    sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    with log.open("w") as file, redirect_stdout(file):
        paths = [f"tests/{test}" for test in tests]
        sys.exit(int(pytest.main(["-q", "-p", "no:cacheprovider", *paths])))


def main(words):
    """Plant the mistakes one by one; exit code 1 unless each is caught."""
    rows = [row for row in MISTAKES if not words or any(w in str(row) for w in words)]
    process = multiprocessing.get_context("forkserver")  # frameworks are imported once
    process.set_forkserver_preload(["jax", "flax.nnx", "optax", "torch", "pytest"])
    started, caught = time.time(), 0
    with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
        tree, log = Path(folder), Path(folder, "log")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, tree / name)
        for name in FILES:
            shutil.copy(ROOT / name, tree / name)
        every = list(dict.fromkeys(row[-1] for row in rows))
        for what, side, *change, tests in [("no mistake", "both", every), *rows]:
            before = plant(tree, side, *change) if change else {}
            said = "CODE NOT FOUND"
            if before or not change:
                args = tree, [tests] if change else tests, log
                job = process.Process(target=run, args=args)
                job.start()
                job.join()
                codes = ("NOT CAUGHT", "caught") if change else ("passes", "FAILS")
                said = dict(enumerate(codes)).get(job.exitcode, "NO SUCH TEST")
            caught += said == "caught"
            print(f"{time.time() - started:4.0f} s  {side:5}  {what}: {said}", flush=1)
            if said in ("FAILS", "NO SUCH TEST"):
                print(log.read_text())
            for path, text in before.items():
                path.write_text(text, "utf-8")
    print(f"{caught} of {len(rows)} caught")
    sys.exit(caught < len(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
