"""Sentence vectors: encoders by name, with a cache that processes share."""
from adaptmr.embed.encoders import Embedder, HashEmbedder, TextEmbedder, VectorMiss, embedder, shared_cache
from adaptmr.embed.names import choose_embedder
from adaptmr.embed.vector_cache import VectorCache, cache_dir

__all__ = ["Embedder", "HashEmbedder", "TextEmbedder", "VectorCache", "VectorMiss", "cache_dir", "embedder",
           "choose_embedder", "shared_cache"]
