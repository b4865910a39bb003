"""From texts to vectors: embedders behind one protocol, chosen by the setting ``embedder``."""
