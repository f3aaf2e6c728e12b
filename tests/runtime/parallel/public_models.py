"""Models of public libraries as they are, tiny and with random weights, and batches as users give them."""

from __future__ import annotations

import torch

ROWS, TOKENS, WORDS = 4, 12, 96


def _words(rows=ROWS, tokens=TOKENS):
    return torch.randint(3, WORDS, (rows, tokens))


def _named(name, configuration, inputs):
    """A model of transformers by the name of its class, which loads that model's module alone."""
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**configuration)).train(), inputs()


def gpt2(**changed):
    own = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    own |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    return _named(
        "GPT2LMHeadModel", own | changed, lambda: {"input_ids": (x := _words()), "labels": x.clone()}
    )


def bert():
    own = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    own |= {"intermediate_size": 64, "max_position_embeddings": 32}
    own |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def inputs():
        mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
        mask[1, 7:] = mask[3, 4:] = 0
        x = _words()
        return {"input_ids": x, "attention_mask": mask, "labels": x.masked_fill(mask == 0, -100)}

    return _named("BertForMaskedLM", own, inputs)


def bert_classifier():
    own = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    own |= {"intermediate_size": 64, "max_position_embeddings": 32, "num_labels": 3}
    own |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return _named(
        "BertForSequenceClassification",
        own,
        lambda: {"input_ids": _words(), "labels": torch.randint(3, (ROWS,))},
    )


def _llama_like(name, **more):
    own = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    own |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, **more}

    def inputs():
        x = _words()
        mask = torch.ones_like(x)
        mask[0, :5] = 0
        return {"input_ids": x, "attention_mask": mask, "labels": x.masked_fill(mask == 0, -100)}

    return _named(name, own, inputs)


def llama():
    return _llama_like("LlamaForCausalLM")


def mixtral():
    return _llama_like("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2)


def t5():
    own = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    own |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
    return _named(
        "T5ForConditionalGeneration", own, lambda: {"input_ids": _words(), "labels": _words(tokens=8)}
    )


def whisper():
    own = {"vocab_size": WORDS, "num_mel_bins": 8, "d_model": 32, "max_source_positions": 16}
    own |= {"encoder_layers": 2, "decoder_layers": 2, "max_target_positions": 16, "dropout": 0.0}
    own |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    own |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1}
    own |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return _named(
        "WhisperForConditionalGeneration",
        own,
        lambda: {"input_features": torch.randn(ROWS, 8, 32), "labels": _words(tokens=8)},
    )


def vit():
    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    own |= {"image_size": 16, "patch_size": 8, "num_labels": 10}
    return _named(
        "ViTForImageClassification",
        own,
        lambda: {"pixel_values": torch.randn(ROWS, 3, 16, 16), "labels": torch.randint(10, (ROWS,))},
    )


TRANSFORMERS = {
    "gpt2": gpt2,
    "bert": bert,
    "bert for classes": bert_classifier,
    "llama": llama,
    "mixtral": mixtral,
    "t5": t5,
    "whisper": whisper,
    "vit": vit,
}
