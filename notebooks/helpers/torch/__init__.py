"""What the PyTorch pages build, one file a chapter; a page imports it in one line.

    from helpers.torch import LanguageModel, build, fit

A size or an option that makes no sense raises ``ValueError`` with what was expected
and what came. A file is read when one of its names is first asked for; ``memory``, what
a backward pass needs, is imported by its own name.
"""

from importlib import import_module

from helpers.torch.attention import attention  # not the file of that name

NAMES = {  # in the order of the chapters
    "attention": """
        MultiHeadAttention build check_input dense fused_attention
        masked_softmax merge_heads
    """,
    "encoder": "NORMS pick check_rate FeedForward EncoderBlock Encoder",
    "positions": """sinusoidal_positions SinusoidalPositions LearnedPositions rotary
        RotaryAttention POSITIONS Predictor attention_maps""",
    "training": """
        cross_entropy odd_one_out next_token fit evaluate on_device Distributed
        over_processes Trainer loss_weights make_optimizer update run_epoch
        score
    """,
    "compute": "full_float32 for_training",
    "vision": """
        cut_patches VisionTransformer count_patches check_images move_pictures augment
    """,
    "decoder": "embedding unembedding check_tokens LanguageModel load_language_model",
    "generation": "new_cache advance next_token_probabilities generate continue_texts",
    "translation": """
        DecoderBlock Decoder check_shared Translator translate search_beams
    """,
    "today": """
        part_size projection rotary_halves split_heads fused keep GroupedAttention SwiGLU
        MLP MixtureOfExperts make_norm ModernBlock placed embedding_table ModernLM
        empty_cache generate_greedily continue_greedily load_pretrained
    """,
    "lora": """LoRALinear find_layers add_lora find_adapters merge_lora train_only
        save_adapter load_adapter TextClassifier""",
    "classifier": "SequenceClassifier",
    "masked": "MaskedLM load_bert masked_token",
}
FILES = {name: file for file, names in NAMES.items() for name in names.split()}


def __getattr__(name):
    """A class or function of one of the files."""
    if name not in FILES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{FILES[name]}"), name)
