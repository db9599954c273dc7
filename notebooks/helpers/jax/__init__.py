"""What the JAX (Flax NNX) pages build, one file a chapter; a page imports it in one line.

    from helpers.jax import LanguageModel, build, fit

A file is read when one of its names is first asked for. ``memory``, what a training
step keeps, is imported by its own name.
"""

from importlib import import_module

from helpers.jax.attention import (
    UNIFORM,
    MultiHeadAttention,
    attention,
    build,
    check_input,
    check_mask,
    check_shapes,
    dense,
    masked_softmax,
)

NAMES = {
    "encoder": """
        ACTIVATIONS EXACT NORMS pick check_rate FeedForward EncoderBlock Encoder
    """,  # The encoder block
    "positions": """
        sinusoidal_positions check_length SinusoidalPositions LearnedPositions
        POSITIONS Predictor attention_maps
    """,  # Positions and the whole encoder
    "training": """
        cross_entropy odd_one_out next_token fit evaluate on_all_devices on_mesh
        place_of on_device Distributed Trainer flat_product flat_convolution is_plain
        with_flat_products is_key raw put make_optimizer update run_epoch score
        run_batch
    """,  # The reverse task
    "vision": """
        cut_patches POOLS VisionTransformer count_patches check_images
        move_pictures augment
    """,  # Pictures as sequences
    "decoder": """
        embedding unembedding causal_mask check_tokens LanguageModel
    """,  # A model that writes
    "generation": """
        attend attend_and_keep new_cache attend_to_known advance_block advance
        next_token_probabilities check_prompts check_sampling generate
        continue_texts
    """,  # A model that writes
    "translation": """
        DecoderBlock Decoder check_shared Translator check_search translate
        take_rows first_beams best_continuations search_beams
    """,  # A model that reads and writes
}
FILES = {name: file for file, names in NAMES.items() for name in names.split()}


def __getattr__(name):
    """A class or function of one of the files."""
    if name not in FILES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{FILES[name]}"), name)
